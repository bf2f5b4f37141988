import type { Json } from "./types";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : compact.format(value);

export const rate = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : `${compact.format(value)}/s`;

export const seconds = (value: number | null | undefined): string => {
  if (value === null || value === undefined) return "–";
  if (value < 60) return `${Math.round(value)} s`;
  return value < 3600 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
};

/** A value of JSON as text; texts without quotes. */
export const text = (value: Json | undefined): string =>
  value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** How an expression writes a value. */
export const literal = (value: Json): string => JSON.stringify(value);
