/** The place in the page, kept in the address behind `#`: `#/view?name=value`. */
import { useEffect, useState } from "preact/hooks";

export type View = "topology" | "port" | "why" | "rows";

export interface Place {
  view: View;
  query: Record<string, string>;
}

const VIEWS: readonly string[] = ["topology", "port", "why", "rows"];

export function parsePlace(hash: string): Place {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = VIEWS.includes(path) ? (path as View) : "topology";
  return { view, query: Object.fromEntries(new URLSearchParams(search)) };
}

export function link(view: View, query: Record<string, string | undefined> = {}): string {
  const given = Object.entries(query).filter((pair): pair is [string, string] => !!pair[1]);
  const text = new URLSearchParams(given).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function go(view: View, query: Record<string, string | undefined> = {}): void {
  location.hash = link(view, query);
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => parsePlace(location.hash));
  useEffect(() => {
    const follow = () => setPlace(parsePlace(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return place;
}
