/** Requests to the broker. The token is kept in sessionStorage and nowhere else. */

const TOKEN = "streambroker.token";
const BASE = "../api/subscriptions/";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly body: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** The broker did not answer: it is restarting, or the network is down. */
export const isAway = (error: unknown): boolean =>
  error instanceof Problem && (error.status === 0 || error.status === 502 || error.status === 503);

export const readToken = (): string | null => sessionStorage.getItem(TOKEN);
export const writeToken = (token: string): void => sessionStorage.setItem(TOKEN, token);
export const forgetToken = (): void => sessionStorage.removeItem(TOKEN);

let signedOut: () => void = () => undefined;
/** What to do when the broker refuses the token. */
export const onSignedOut = (handler: () => void): void => {
  signedOut = handler;
};

export type Query = Record<string, string | number | undefined>;

export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return BASE + path + (text ? `?${text}` : "");
}

export function authorization(token = readToken()): Record<string, string> {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export interface Answer<T> {
  body: T;
  etag: string | null;
}

interface Options {
  method?: string;
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  token?: string | null;
}

export async function ask<T>(path: string, options: Options = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { ...authorization(options.token), ...options.headers };
  if (options.body !== undefined) headers["Content-Type"] ??= "application/json";
  let response: Response;
  try {
    response = await fetch(address(path, options.query), {
      method: options.method ?? "GET",
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, "Away", "The broker does not answer.");
  }
  if (!response.ok) throw await refusal(response, options.token === undefined);
  const body = response.status === 204 ? null : await response.json();
  return { body: body as T, etag: response.headers.get("ETag") };
}

async function refusal(response: Response, own: boolean): Promise<Problem> {
  const body = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  const detail = typeof body.detail === "string" ? body.detail : `HTTP ${response.status}`;
  if (response.status === 401 && own) signedOut();
  return new Problem(response.status, String(body.code ?? response.status), detail, body);
}

export const get = async <T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> =>
  (await ask<T>(path, { query, signal })).body;

export const post = async <T>(path: string, body: unknown, query?: Query, signal?: AbortSignal) =>
  (await ask<T>(path, { method: "POST", body, query, signal })).body;
