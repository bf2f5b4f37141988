/** One port: its manifest, status, routes with metrics, and its history. */
import { useEffect, useState } from "preact/hooks";
import { ask, get } from "../api";
import { number, rate, seconds, text } from "../format";
import { useLoaded } from "../live";
import { Card, Empty, Failure, PortLink, Skeleton, StateBadge } from "../parts/bits";
import { Change } from "../parts/change";
import { Expression, useBasis, useDraft, type LoadedPort } from "../parts/expression";
import { usePorts } from "../parts/names";
import { Picker } from "../parts/picker";
import { Rates, sample, type Samples } from "../parts/rates";
import { parsePort, portPath } from "../ports";
import { go, link } from "../route";
import { useSession } from "../session";
import type { HistoryEntry, Json, JsonObject, Kind, Manifest, State, Top, TopRoute } from "../types";

const sum = (routes: TopRoute[]): number | null => {
  const rates = routes.map((one) => one.rowsPerSecond).filter((one): one is number => one !== null);
  return rates.length ? rates.reduce((all, one) => all + one, 0) : null;
};

function stateOf(route: TopRoute): State {
  if (route.waiting) return "waits";
  if (route.age === null) return "unknown";
  if (route.readToEnd) return "ended";
  if (!route.alive) return "away";
  if ((route.stalledSeconds ?? 0) >= 90 && !route.bytesPerSecond) return "stalled";
  return route.rowsPerSecond || route.lagEpochs ? "flows" : "idle";
}

function Routes({ kind, routes, filters }: { kind: Kind; routes: TopRoute[]; filters: Map<string, string | null> }) {
  if (!routes.length) {
    return (
      <Empty title="No routes">
        <p>The Why view shows what is nearest to a match.</p>
      </Empty>
    );
  }
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of routes">
      <table>
        <thead>
          <tr>
            <th scope="col">{kind === "Export" ? "Import" : "Export"}</th>
            <th scope="col">State</th>
            <th scope="col" class="num">Rows/s</th>
            <th scope="col" class="num">Lag</th>
            <th scope="col" class="num">Full</th>
            <th scope="col" class="num">Blocked</th>
            <th scope="col" class="num">Filtered</th>
            <th scope="col" class="num">Dropped</th>
            <th scope="col" class="num">Lost</th>
            <th scope="col">Filter</th>
          </tr>
        </thead>
        <tbody>
          {routes.map((one) => {
            const other = kind === "Export" ? one.import : one.export;
            const view = link("why", { export: one.export, import: one.import });
            const filter = filters.get(`${one.export}>${one.import}`);
            return (
              <tr key={other}>
                <td>
                  <PortLink href={view} text={other} />
                </td>
                <td>
                  <StateBadge state={stateOf(one)} />
                  {(one.exportProblem ?? one.importProblem) && (
                    <span class="bad">
                      {" "}
                      {one.importProblem ?? one.exportProblem}
                    </span>
                  )}
                </td>
                <td class="num">{rate(one.rowsPerSecond)}</td>
                <td class="num">
                  {number(one.lagRows)}
                  {one.lagSeconds !== null && <span class="muted"> {seconds(one.lagSeconds)}</span>}
                </td>
                <td class="num">{one.congestion === null ? "–" : `${one.congestion}%`}</td>
                <td class="num">{seconds(one.blockedSeconds)}</td>
                <td class="num">{number(one.filteredRows)}</td>
                <td class={`num ${one.droppedRows ? "bad" : ""}`}>{number(one.droppedRows)}</td>
                <td class={`num ${one.lostRows ? "bad" : ""}`}>{number(one.lostRows)}</td>
                <td>{filter ? <code>{filter}</code> : <span class="muted">every row</span>}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Facts({ values }: { values: [string, Json | undefined][] }) {
  return (
    <dl class="facts">
      {values
        .filter(([, value]) => value !== undefined && value !== null && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{text(value)}</dd>
          </div>
        ))}
    </dl>
  );
}

function Status({ manifest }: { manifest: Manifest }) {
  const status = (manifest.status ?? {}) as JsonObject;
  const conditions = Array.isArray(status.conditions) ? (status.conditions as JsonObject[]) : [];
  const good = status.accepted === true;
  const healthy = (status.healthy ?? null) as { reason: string; message: string } | null;
  const problem = healthy && healthy.reason !== "AsExpected" ? healthy : null;
  const schema = status.schemaVersion as JsonObject | undefined;
  return (
    <Card
      title="Status"
      aside={<span class={`badge ${good ? "flows" : "waits"}`}>{good ? "✓ accepted" : `■ ${text(status.reason) || "refused"}`}</span>}
    >
      {text(status.message) && <p class="bad">{text(status.message)}</p>}
      {problem && (
        <p class="bad" role="status">
          <strong>{problem.reason}</strong> {problem.message}
        </p>
      )}
      <Facts
        values={[
          ["Matches", status.matches],
          ["Generation", manifest.metadata.generation],
          ["Ended", status.ended === true ? "yes" : undefined],
          ["Stored", status.stored],
          ["Schema version", schema && `${text(schema.number)}${schema.since ? `, since ${text(schema.since)}` : ""}`],
        ]}
      />
      {conditions.map((one) => (
        <p key={text(one.type)}>
          <strong>{text(one.type)}</strong> {text(one.status)} <span class="muted">{text(one.reason)}</span> {text(one.message)}
        </p>
      ))}
    </Card>
  );
}

function About({ spec }: { spec: Manifest["spec"] }) {
  if (!spec.description && !spec.owner && !spec.tags) return null;
  return (
    <Card title="About">
      {spec.description && <p class="description">{spec.description}</p>}
      <Facts
        values={[
          ["Owner", spec.owner],
          ["Tags", spec.tags?.join(", ")],
        ]}
      />
    </Card>
  );
}

function Timeline({ kind, port }: { kind: Kind; port: string }) {
  const query = { namespace: port.split("/")[0], [kind.toLowerCase()]: port };
  const loaded = useLoaded(`history ${port}`, (signal) =>
    get<{ entries: HistoryEntry[] }>("history", query, signal),
  );
  return (
    <Card title="History">
      {loaded.error && !loaded.data && <Failure error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && <Skeleton lines={3} />}
      {loaded.data?.entries.length === 0 && <p class="muted">No change through this broker since it started.</p>}
      <ol class="timeline">
        {loaded.data?.entries.map((entry) => (
          <li key={`${entry.time}${entry.generation}`}>
            <p>
              <strong>{entry.action}</strong> by {entry.principal}{" "}
              <time class="muted" dateTime={entry.time}>
                {new Date(entry.time).toLocaleString()}
              </time>
            </p>
            {entry.changes.map((one) => (
              <p key={one.field} class="diff">
                <span class="muted">{one.field}</span>
                {one.old !== null && <del>{one.old}</del>}
                {one.new !== null && <ins>{one.new}</ins>}
              </p>
            ))}
          </li>
        ))}
      </ol>
    </Card>
  );
}

function Operators({ job, top }: { job: string; top: Top }) {
  const own = (all: JsonObject[] | undefined) => (all ?? []).filter((one) => JSON.stringify(one).includes(`"${job}`));
  const lists: [string, JsonObject[]][] = [
    ["Side inputs", own(top.sides)],
    ["Rules of patterns", own(top.rules)],
    ["Operators that wait", own(top.ruleWaiting)],
  ];
  return (
    <>
      {lists
        .filter(([, items]) => items.length)
        .map(([title, items]) => (
          <Card key={title} title={title}>
            {items.map((one, index) => (
              <Facts key={index} values={Object.entries(one)} />
            ))}
          </Card>
        ))}
    </>
  );
}

function Properties({ answer, reload, port }: LoadedPort) {
  const { info } = useSession();
  const manifest = answer.body;
  const current = JSON.stringify(manifest.spec.properties ?? {}, null, 2);
  const [value, setValue, reset] = useDraft(current);
  let parsed: JsonObject | null = null;
  let wrong = "";
  try {
    parsed = JSON.parse(value) as JsonObject;
  } catch (error) {
    wrong = (error as Error).message;
  }
  const basis = useBasis(value !== current, answer.etag);
  const spec = parsed && value !== current ? { ...manifest.spec, properties: parsed } : null;
  return (
    <Change {...{ port, manifest, part: "properties" as const, spec, reload, reset }} etag={basis}>
      <label for="properties">Properties</label>
      <textarea
        id="properties"
        class="json"
        rows={Math.min(14, value.split("\n").length)}
        readOnly={info.readOnly}
        spellcheck={false}
        aria-invalid={!!wrong}
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
      />
      {wrong && <p class="bad">{wrong}</p>}
    </Change>
  );
}

const SHOWN = new Set(["subscription", "filter", "properties", "schema", "job", "pe", "port", "description", "owner", "tags", "columnComments"]);

function PortPage({ kind, port }: { kind: Kind; port: string }) {
  const { info, dark } = useSession();
  const key = parsePort(port);
  const namespace = key?.namespace ?? "";
  const loaded = useLoaded(key && `port ${kind} ${port}`, (signal) =>
    ask<Manifest>(portPath(kind, key!), { query: { namespace }, signal }),
  );
  const side = kind === "Export" ? "export" : "import";
  const top = useLoaded(`top ${namespace}`, (signal) => get<Top>("top", { namespace }, signal));
  const listed = useLoaded(`routes ${namespace}`, (signal) =>
    get<{ items: { export: string; import: string; filter: string | null }[] }>("routes", { namespace }, signal),
  );
  const routes = (top.data?.routes ?? []).filter((one) => one[side] === port);
  const [samples, setSamples] = useState<Samples>([[], []]);
  useEffect(() => {
    if (top.data) setSamples(sample(port, sum(routes)));
  }, [top.data, port]);
  const filters = new Map((listed.data?.items ?? []).map((one) => [`${one.export}>${one.import}`, one.filter]));
  if (loaded.error && !loaded.data) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data || !key) return <Skeleton lines={8} />;
  const manifest = loaded.data.body;
  const rest = Object.entries(manifest.spec).filter(([name]) => !SHOWN.has(name)) as [string, Json][];
  const common = { answer: loaded.data, reload: loaded.reload, port };
  return (
    <>
      <header class="page-head">
        <div>
          <p class="overline">{kind}</p>
          <h1>
            <span class="muted">
              {key.namespace} / {key.job} / {key.pe} /
            </span>{" "}
            {key.port}
          </h1>
        </div>
        <div class="actions">
          <a class="button" href={link("topology", { focus: `${key.namespace}/${key.job}`, hops: "1", chosen: `${key.namespace}/${key.job}` })}>
            Show in topology
          </a>
          <a class="button" href={link("why", { [side]: port })}>
            Why
          </a>
          {kind === "Export" && info.peek && (
            <a class="button" href={link("rows", { export: port })}>
              Rows
            </a>
          )}
        </div>
      </header>
      <div class="grid">
        <div class="wide">
          <Card title="Routes" aside={<span class="figure">{rate(sum(routes))}</span>}>
            {samples[1].some((one) => one !== null) && <Rates samples={samples} dark={dark} />}
            <Routes kind={kind} routes={routes} filters={filters} />
          </Card>
          {kind === "Import" && manifest.spec.subscription !== undefined && (
            <Card title="What it imports">
              <Expression key={`s ${port}`} part="subscription" {...common} />
              <hr />
              <Expression key={`f ${port}`} part="filter" {...common} />
            </Card>
          )}
          {kind === "Export" && manifest.spec.properties && (
            <Card title="What it offers">
              <Properties key={port} {...common} />
            </Card>
          )}
          {top.data && <Operators job={key.job} top={top.data} />}
        </div>
        <div class="narrow">
          {kind === "Export" && <About spec={manifest.spec} />}
          <Status manifest={manifest} />
          <Card title="Settings">
            <Facts values={rest} />
            {manifest.spec.schema && (
              <table class="small">
                <thead>
                  <tr>
                    <th scope="col">Column</th>
                    <th scope="col">Type</th>
                    {manifest.spec.columnComments && <th scope="col">Comment</th>}
                  </tr>
                </thead>
                <tbody>
                  {manifest.spec.schema.map((one) => (
                    <tr key={one.name}>
                      <td>
                        <code>{one.name}</code>
                      </td>
                      <td class="muted">{text(one.type as Json)}</td>
                      {manifest.spec.columnComments && <td>{manifest.spec.columnComments[one.name]}</td>}
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </Card>
          <Timeline kind={kind} port={port} />
        </div>
      </div>
    </>
  );
}

export function Port({ query }: { query: Record<string, string> }) {
  const { namespace } = useSession();
  const exports = usePorts("exports", namespace);
  const imports = usePorts("imports", namespace);
  const kind: Kind = query.import ? "Import" : "Export";
  const port = query.import ?? query.export;
  return (
    <div class="page">
      <div class="pickers">
        <Picker label="Export" ports={exports} value={query.export ?? ""} choose={(one) => go("port", { export: one })} />
        <Picker label="Import" ports={imports} value={query.import ?? ""} choose={(one) => go("port", { import: one })} />
      </div>
      {port ? (
        <PortPage key={`${kind} ${port}`} kind={kind} port={port} />
      ) : (
        <Empty title="Choose a port" heading>
          <p>Choose an Export or an Import above, or a job in the topology.</p>
        </Empty>
      )}
    </div>
  );
}
