/** Small parts of the page. */
import type { ComponentChildren } from "preact";
import type { Problem } from "../api";
import { isAway } from "../api";
import type { State } from "../types";

const GLYPHS: Record<State, string> = {
  flows: "▶",
  waits: "■",
  stalled: "‖",
  away: "◌",
  idle: "●",
  ended: "✓",
  stale: "?",
  unknown: "?",
};
const MEANINGS: Record<State, string> = {
  flows: "Rows flow.",
  waits: "The exporter waits for a reader.",
  stalled: "A query reads, but has finished nothing for 90 seconds although rows wait.",
  away: "The reader is away.",
  idle: "There are no new rows.",
  ended: "The export has ended.",
  stale: "The last report is old.",
  unknown: "No agent has reported.",
};

export function StateBadge({ state }: { state: State | null }) {
  if (!state) return <span class="badge none">no routes</span>;
  return (
    <span class={`badge ${state}`} title={MEANINGS[state]}>
      <span aria-hidden="true">{GLYPHS[state]}</span> {state}
    </span>
  );
}

export function Empty(props: { title: string; heading?: boolean; children?: ComponentChildren }) {
  const { title, heading, children } = props;
  return (
    <div class="empty">
      <svg viewBox="0 0 64 40" width="72" height="45" aria-hidden="true">
        <path d="M10 10 C32 10 32 28 54 28" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="4 4" />
        <circle cx="10" cy="10" r="6" fill="none" stroke="currentColor" stroke-width="2" />
        <circle cx="54" cy="28" r="6" fill="none" stroke="currentColor" stroke-width="2" />
      </svg>
      {heading ? <h1 class="empty-title">{title}</h1> : <p class="empty-title">{title}</p>}
      {children && <div class="muted">{children}</div>}
    </div>
  );
}

export function Failure({ error, retry }: { error: Problem; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <strong>{isAway(error) ? "The broker does not answer" : error.code}</strong>
      <p>{isAway(error) ? "The page goes on by itself once the broker is back." : error.message}</p>
      {retry && !isAway(error) && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Skeleton({ lines = 4 }: { lines?: number }) {
  return (
    <div class="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <span key={index} style={{ width: `${90 - ((index * 17) % 45)}%` }} />
      ))}
    </div>
  );
}

export function Card(props: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={props.title}>
      <header>
        <h2>{props.title}</h2>
        {props.aside}
      </header>
      <div class="card-body">{props.children}</div>
    </section>
  );
}

export function PortLink({ href, text }: { href: string; text: string }) {
  const parts = text.split("/");
  const port = parts.pop();
  return (
    <a class="port-link" href={href}>
      <span class="muted">{parts.join("/")}/</span>
      {port}
    </a>
  );
}

export function Code({ text }: { text: string }) {
  return <code>{text}</code>;
}
