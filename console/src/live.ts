/** Events of the broker, and data that are loaded again when something has changed. */
import { useEffect, useRef, useState } from "preact/hooks";
import { address, authorization, isAway, Problem } from "./api";

export type Link = "connecting" | "live" | "away" | "refused";

type Listener = () => void;
const changed = new Set<Listener>();
const links = new Set<Listener>();
let link: Link = "connecting";
const RETRY_MS = 1_000;
const SETTLE_MS = 200;
const METRICS_MS = 5_000;

function setLink(next: Link): void {
  if (next === link) return;
  link = next;
  for (const one of links) one();
}

let settling: ReturnType<typeof setTimeout> | undefined;
/** Load everything that is shown again, once for many changes in a short time. */
export function announce(): void {
  settling ??= setTimeout(() => {
    settling = undefined;
    for (const one of changed) one();
  }, SETTLE_MS);
}

/** Follow the events of a namespace until the signal; after a break continue where they ended. */
export async function follow(namespace: string, signal: AbortSignal): Promise<void> {
  let last = "";
  while (!signal.aborted) {
    try {
      const headers = { ...authorization(), ...(last ? { "Last-Event-ID": last } : {}) };
      const url = address("events", { namespace });
      const response = await fetch(url, { headers, signal, credentials: "omit", cache: "no-store" });
      if (response.status === 401 || response.status === 403) return setLink("refused");
      if (!response.ok || !response.body) throw new Error(String(response.status));
      setLink("live");
      announce();
      for await (const event of readEvents(response.body)) {
        last = event.id || last;
        if (event.data) announce();
      }
    } catch {
      if (signal.aborted) return;
    }
    setLink("away");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

export interface ServerEvent {
  id: string;
  name: string;
  data: string;
}

export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = (await reader.read()) as ReadableStreamReadResult<string>;
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop() ?? "";
    for (const part of parts) yield parseEvent(part);
  }
}

function parseEvent(text: string): ServerEvent {
  const event = { id: "", name: "", data: "" };
  for (const line of text.split(/\r?\n/)) {
    const [field = "", ...value] = line.split(":");
    const content = value.join(":").replace(/^ /, "");
    if (field === "id") event.id = content;
    if (field === "event") event.name = content;
    if (field === "data") event.data += content;
  }
  return event;
}

export function useLink(): Link {
  const [shown, setShown] = useState(link);
  useEffect(() => {
    const update = () => setShown(link);
    links.add(update);
    return () => void links.delete(update);
  }, []);
  return shown;
}

export interface Loaded<T> {
  data: T | null;
  error: Problem | null;
  loading: boolean;
  reload: () => void;
}

/**
 * Load data now, after each change and every 5 s. What was loaded stays while the broker is away.
 * A null key loads nothing.
 */
export function useLoaded<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; data: T | null; error: Problem | null }>({
    key: null,
    data: null,
    error: null,
  });
  const latest = useRef(load);
  latest.current = load;
  const reload = useRef<() => void>(() => undefined);
  useEffect(() => {
    if (key === null) return;
    const end = new AbortController();
    let busy = false;
    let again = false;
    const run = async () => {
      if (busy) return void (again = true);
      busy = true;
      try {
        const data = await latest.current(end.signal);
        if (!end.signal.aborted) setState({ key, data, error: null });
      } catch (error) {
        if (end.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(500, "Page", String(error));
        const keep = isAway(problem) || problem.status === 429;
        setState((was) => ({ key, data: keep && was.key === key ? was.data : null, error: problem }));
      } finally {
        busy = false;
        if (again && !end.signal.aborted) {
          again = false;
          void run();
        }
      }
    };
    reload.current = () => void run();
    void run();
    const timer = setInterval(run, METRICS_MS);
    const listener = () => void run();
    changed.add(listener);
    return () => {
      end.abort();
      clearInterval(timer);
      changed.delete(listener);
    };
  }, [key]);
  const current = state.key === key;
  return {
    data: current ? state.data : null,
    error: current ? state.error : null,
    loading: key !== null && !(current && (state.data !== null || state.error !== null)),
    reload: () => reload.current(),
  };
}

/** The value, once it has not changed for some milliseconds. */
export function useSettled<T>(value: T, wait: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), wait);
    return () => clearTimeout(timer);
  }, [value, wait]);
  return settled;
}
