/** Jobs as nodes, routes as edges. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { Canvas, nodeText } from "../graph/canvas";
import { fold, title } from "../graph/fold";
import { number, plural, rate, seconds } from "../format";
import { useLoaded, useSettled } from "../live";
import { Empty, Failure, PortLink, Skeleton, StateBadge } from "../parts/bits";
import { portOf } from "../parts/names";
import { go, link } from "../route";
import { useSession } from "../session";
import type { Graph, GraphNode, Manifest } from "../types";

type Query = Record<string, string | undefined>;
const MAX_LISTED = 300;

function Search({ query }: { query: Query }) {
  const [text, setText] = useState(query.match ?? "");
  const settled = useSettled(text, 100);
  const shown = useRef(query.match ?? "");
  useEffect(() => {
    if ((query.match ?? "") !== shown.current) setText((shown.current = query.match ?? ""));
  }, [query.match]);
  useEffect(() => {
    if (settled.trim() === shown.current) return;
    shown.current = settled.trim();
    go("topology", { ...query, focus: undefined, match: settled.trim() });
  }, [settled]);
  return (
    <input
      id="search"
      type="search"
      class="search"
      aria-label="Search jobs"
      placeholder='Search: words, kind=trade, or level > 2 && has(kind)'
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
}

function Ports({ kind, items }: { kind: "export" | "import"; items: Manifest[] }) {
  if (!items.length) return null;
  return (
    <>
      <h3>{kind === "export" ? "Exports" : "Imports"}</h3>
      <ul class="plain">
        {items.map((one) => {
          const port = portOf(one);
          const text = kind === "export" ? "" : (one.spec.subscription ?? "by name");
          return (
            <li key={port} class="port-row">
              <PortLink href={link("port", { [kind]: port })} text={`${one.spec.pe}/${one.spec.port}`} />
              {text && <code class="clip">{text}</code>}
            </li>
          );
        })}
      </ul>
    </>
  );
}

function useJobPorts(node: GraphNode): { exports: Manifest[]; imports: Manifest[] } | null {
  const { namespace, job } = node;
  const key = node.kind === "job" && !node.external ? `ports ${node.id}` : null;
  return useLoaded(key, async (signal) => {
    const own = (all: { items: Manifest[] }) => all.items.filter((one) => one.spec.job === job);
    const [exports, imports] = await Promise.all([
      get<{ items: Manifest[] }>("exports", { namespace }, signal),
      get<{ items: Manifest[] }>("imports", { namespace }, signal),
    ]);
    return { exports: own(exports), imports: own(imports) };
  }).data;
}

function Details({ node, graph, query }: { node: GraphNode; graph: Graph; query: Query }) {
  const ports = useJobPorts(node);
  const around = graph.edges.filter((edge) => edge.from === node.id || edge.to === node.id);
  const routes = around.flatMap((edge) => edge.list ?? []);
  const group = node.kind === "group" ? node.id.slice("group:".length) : undefined;
  return (
    <aside class="details" aria-label={`Details of ${title(node)}`}>
      <header>
        <div>
          <p class="overline">{node.kind === "group" ? "application" : node.kind}</p>
          <h2>{title(node)}</h2>
          <p class="muted">{nodeText(node)}</p>
        </div>
        <button type="button" class="icon" aria-label="Close" onClick={() => go("topology", { ...query, chosen: undefined })}>
          ✕
        </button>
      </header>
      <StateBadge state={node.state} />
      <div class="actions">
        {node.kind === "job" && !node.external && (
          <>
            <a class="button" href={link("topology", { ns: query.ns, focus: node.id, hops: "1", chosen: node.id })}>
              Focus, 1 hop
            </a>
            <a class="button" href={link("topology", { ns: query.ns, focus: node.id, hops: "2", chosen: node.id })}>
              2 hops
            </a>
          </>
        )}
        {group && (
          <a class="button" href={link("topology", { ns: query.ns, folded: query.folded, group })}>
            Open the group
          </a>
        )}
        {node.kind === "namespace" && (
          <a class="button" href={link("topology", { ns: node.namespace })}>
            Open the namespace
          </a>
        )}
      </div>
      {node.kind === "job" && !node.external && !ports && <Skeleton lines={3} />}
      {ports && <Ports kind="export" items={ports.exports} />}
      {ports && <Ports kind="import" items={ports.imports} />}
      {routes.length > 0 && (
        <>
          <h3>Routes</h3>
          <ul class="plain">
            {routes.map((one) => (
              <li key={`${one.export}>${one.import}`} class="route-row">
                <div class="route-line">
                  <a href={link("why", { export: one.export, import: one.import })}>
                    {one.export} <span aria-hidden="true">→</span> {one.import}
                  </a>
                </div>
                <div class="route-facts">
                  <StateBadge state={one.state} />
                  <span>{rate(one.rowsPerSecond)}</span>
                  {one.lagRows ? <span class="muted">lag {number(one.lagRows)} rows, {seconds(one.lagSeconds)}</span> : null}
                </div>
                {one.filter && <code class="clip">{one.filter}</code>}
              </li>
            ))}
          </ul>
        </>
      )}
    </aside>
  );
}

function JobList({ graph, chosen, choose }: { graph: Graph; chosen?: string; choose: (id: string) => void }) {
  return (
    <nav class="jobs" aria-label="Jobs">
      <ul class="plain">
        {graph.nodes.slice(0, MAX_LISTED).map((node) => (
          <li key={node.id}>
            <button
              type="button"
              class={`job ${node.matched ? "matched" : ""}`}
              aria-current={node.id === chosen ? "true" : undefined}
              onClick={() => choose(node.id)}
            >
              <span class={`dot ${node.state ?? "none"}`} aria-hidden="true" />
              <span class="job-name">{title(node)}</span>
              <span class="muted">{node.state ?? ""}</span>
            </button>
          </li>
        ))}
      </ul>
      {graph.nodes.length > MAX_LISTED && (
        <p class="muted">and {number(graph.nodes.length - MAX_LISTED)} more; search to narrow down</p>
      )}
    </nav>
  );
}

function Icon({ path }: { path: string }) {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={path} fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

const LEGEND = ["flows", "waits", "stalled", "away", "idle", "unknown"] as const;

function Legend() {
  return (
    <ul class="legend" aria-label="States of routes">
      {LEGEND.map((one) => (
        <li key={one}>
          <span class={`dot ${one}`} aria-hidden="true" /> {one}
        </li>
      ))}
      <li class="muted">width: rows/s</li>
    </ul>
  );
}

function Drawing(props: { graph: Graph; scope: string; chosen?: string; choose: (id: string | null) => void; open: (id: string) => void }) {
  const { dark } = useSession();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<Canvas | null>(null);
  const handlers = useRef(props);
  handlers.current = props;
  useEffect(() => {
    if (!box.current) return;
    const made = new Canvas(box.current, (id) => handlers.current.choose(id), (id) => handlers.current.open(id));
    canvas.current = made;
    Object.assign(box.current, { places: () => made.positions() });
    return () => made.end();
  }, []);
  useEffect(() => canvas.current?.show(props.graph, props.scope), [props.graph, props.scope]);
  useEffect(() => canvas.current?.choose(props.chosen ?? null), [props.chosen, props.graph]);
  useEffect(() => canvas.current?.paint(), [dark]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = canvas.current?.next(props.chosen ?? null, event.key);
      if (next) {
        props.choose(next);
        canvas.current?.center(next);
      }
    } else if (event.key === "Enter" && props.chosen) props.open(props.chosen);
    else if (event.key === "Escape") props.choose(null);
    else if (event.key === "+" || event.key === "-") canvas.current?.zoom(event.key === "+" ? 1.25 : 0.8);
    else if (event.key === "0") canvas.current?.fit();
  };
  return (
    <div class="drawing">
      <div
        ref={box}
        class="canvas"
        data-testid="canvas"
        tabIndex={0}
        role="application"
        aria-label="Drawing of jobs and routes. Arrow keys choose a job, Enter focuses it, plus and minus zoom, 0 shows all."
        onKeyDown={onKeyDown}
      />
      <div class="tools" role="toolbar" aria-label="Drawing">
        <button type="button" class="icon" aria-label="Zoom in" onClick={() => canvas.current?.zoom(1.25)}><Icon path="M8 3v10M3 8h10" /></button>
        <button type="button" class="icon" aria-label="Zoom out" onClick={() => canvas.current?.zoom(0.8)}><Icon path="M3 8h10" /></button>
        <button type="button" class="icon" aria-label="Show all" onClick={() => canvas.current?.fit()}><Icon path="M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3" /></button>
        <button type="button" class="icon" aria-label="Arrange again" title="Arrange again" onClick={() => canvas.current?.rearrange(props.graph)}><Icon path="M13 8a5 5 0 1 1-1.6-3.7M13 2.5V5h-2.5" /></button>
      </div>
      <Legend />
    </div>
  );
}

function Chips({ query, graph }: { query: Query; graph: Graph | null }) {
  const without = (name: string) => link("topology", { ...query, [name]: undefined, chosen: undefined });
  return (
    <div class="chips">
      {query.focus && (
        <a class="chip" href={without("focus")} aria-label={`Leave the focus on ${query.focus}`}>
          focus: {query.focus}, {query.hops ?? "1"} {query.hops === "2" ? "hops" : "hop"} ✕
        </a>
      )}
      {query.group !== undefined && (
        <a class="chip" href={without("group")} aria-label={`Fold the group ${query.group}`}>
          open: {query.group} ✕
        </a>
      )}
      {graph && (
        <span class="muted">
          {plural(graph.selected.jobs, "job")}, {plural(graph.selected.routes, "route")}
          {graph.selected.jobs !== graph.total.jobs && ` of ${plural(graph.total.jobs, "job")}`}
          {graph.folded && ", folded by application"}
        </span>
      )}
    </div>
  );
}

export function Topology({ query }: { query: Query }) {
  const { namespace } = useSession();
  const { focus, hops, match, group, folded, chosen } = query;
  const request = { namespace, focus, hops: focus ? hops : undefined, match, group };
  const scope = JSON.stringify([request, folded]);
  const loaded = useLoaded(`graph ${JSON.stringify(request)}`, (signal) => get<Graph>("graph", request, signal));
  // The drawing stays until the next one is there: it would be laid out again, and the page would jump.
  const last = useRef<{ data: Graph; scope: string } | null>(null);
  if (loaded.data) last.current = { data: loaded.data, scope };
  const { data, scope: drawn } = (loaded.loading && last.current) || { data: loaded.data, scope };
  const graph = useMemo(() => (data && folded && group === undefined ? fold(data) : data), [data, folded, group]);
  const choose = (id: string | null) => go("topology", { ...query, chosen: id ?? undefined });
  const open = (id: string) => {
    if (id.startsWith("group:")) return go("topology", { ns: query.ns, folded, group: id.slice("group:".length) });
    if (id.startsWith("namespace:")) return go("topology", { ns: id.slice("namespace:".length) });
    go("topology", { ...query, focus: id, hops: "1", chosen: id });
  };
  const node = graph?.nodes.find((one) => one.id === chosen);
  const groups = data?.nodes.some((one) => one.application) ?? false;
  return (
    <div class="topology">
      <h1 class="hidden">Topology</h1>
      <div class="bar">
        <Search query={query} />
        <Chips query={query} graph={graph} />
        {groups && (
          <label class="toggle">
            <input type="checkbox" checked={!!folded} onChange={() => go("topology", { ...query, group: undefined, folded: folded ? undefined : "1" })} />
            Fold applications
          </label>
        )}
      </div>
      {loaded.error && !graph && <Failure error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !graph && <Skeleton lines={6} />}
      {graph && graph.nodes.length === 0 && (
        <Empty title={match ? "No job matches" : "No jobs yet"}>
          {match ? (
            <a href={link("topology", { ...query, match: undefined })}>Show all jobs</a>
          ) : (
            <p>
              Declare Exports and Imports, for instance with <code>streambroker apply -f streams.yaml</code>. They appear
              here at once.
            </p>
          )}
        </Empty>
      )}
      {graph && graph.nodes.length > 0 && (
        <div class="panes" aria-busy={loaded.loading}>
          <JobList graph={graph} chosen={chosen} choose={choose} />
          <Drawing graph={graph} scope={drawn} chosen={chosen} choose={choose} open={open} />
          {node && <Details node={node} graph={graph} query={query} key={node.id} />}
        </div>
      )}
    </div>
  );
}
