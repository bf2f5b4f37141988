/** Why two ports are connected or not, and what is nearest. */
import { useEffect, useState } from "preact/hooks";
import { ask, get, post, Problem } from "../api";
import { plural } from "../format";
import { useLoaded, useSettled } from "../live";
import { Card, Empty, Failure, PortLink, Skeleton } from "../parts/bits";
import { Editor } from "../parts/editor";
import { Expression } from "../parts/expression";
import { ForecastList } from "../parts/forecast";
import { useNames, usePorts } from "../parts/names";
import { Picker } from "../parts/picker";
import { parsePort, portPath } from "../ports";
import { go, link } from "../route";
import { useSession } from "../session";
import type { Checked, Explanation, Forecast, Manifest, Pair, Predicate } from "../types";

const VALUE: Record<string, [string, string]> = {
  true: ["✓ true", "flows"],
  false: ["✗ false", "waits"],
  null: ["? unknown", "away"],
};

function Predicates({ predicates }: { predicates: Predicate[] }) {
  if (!predicates.length) return null;
  return (
    <table class="predicates">
      <thead>
        <tr>
          <th scope="col">Predicate</th>
          <th scope="col">Value</th>
          <th scope="col">Because</th>
        </tr>
      </thead>
      <tbody>
        {predicates.map((one, index) => {
          const [word, state] = VALUE[String(one.value)] ?? ["? unknown", "away"];
          return (
            <tr key={index}>
              <td>
                <code>{one.text}</code>
              </td>
              <td>
                <span class={`badge ${state}`}>{word}</span>
              </td>
              <td>{one.why}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Verdict({ pair, open }: { pair: Pair; open: boolean }) {
  return (
    <details class={`verdict ${pair.matched ? "yes" : "no"}`} open={open}>
      <summary>
        <span class={`badge ${pair.matched ? "flows" : "waits"}`}>
          {pair.matched ? "✓ connected" : `✗ ${plural(pair.distance, "change")} away`}
        </span>
        <span class="verdict-ports">
          {pair.export} <span aria-hidden="true">→</span> {pair.import}
        </span>
      </summary>
      <div class="verdict-body">
        {pair.obstacles.map((one, index) => (
          <p key={index} class="obstacle">
            <strong>{one.reason}</strong> {one.message}
          </p>
        ))}
        <Predicates predicates={pair.predicates} />
        {pair.misses.length > 0 && (
          <div class="misses">
            <h2>Nearest ways to a match</h2>
            <ul>
              {pair.misses.map((way, index) => (
                <li key={index}>
                  {way.map((one, part) => (
                    <span key={part}>
                      {part > 0 && " and "}
                      <code>{one.text}</code> becomes {String(one.wanted)} <span class="muted">({one.why})</span>
                    </span>
                  ))}
                </li>
              ))}
            </ul>
          </div>
        )}
        <p class="verdict-links">
          <PortLink href={link("port", { export: pair.export })} text={pair.export} />
          <PortLink href={link("port", { import: pair.import })} text={pair.import} />
        </p>
      </div>
    </details>
  );
}

function Explained({ query }: { query: Record<string, string> }) {
  const ports = { import: query.import, export: query.export };
  const namespace = (query.import ?? query.export ?? "").split("/")[0];
  const loaded = useLoaded(`explain ${JSON.stringify(ports)}`, (signal) =>
    get<Explanation>("explain", { ...ports, namespace }, signal),
  );
  if (loaded.error && !loaded.data) return <Failure error={loaded.error} retry={loaded.reload} />;
  if (!loaded.data) return <Skeleton lines={6} />;
  const { pairs, matched, total, lint } = loaded.data;
  const others = query.import ? "export" : "import";
  return (
    <>
      <header class="page-head">
        <h1>
          {pairs.length === 1 && query.import && query.export
            ? pairs[0]?.matched
              ? "They are connected"
              : "They are not connected"
            : `${matched} of ${plural(total, others)} ${matched === 1 ? "matches" : "match"}`}
        </h1>
      </header>
      {lint.map((one, index) => (
        <p key={index} class="notice">
          <strong>{one.code}</strong> {one.message}
        </p>
      ))}
      {pairs.length === 0 && <Empty title={`There are no ${others}s to compare with`} />}
      {pairs.map((pair, index) => (
        <Verdict key={`${pair.export}>${pair.import}`} pair={pair} open={pairs.length === 1 || index < 3} />
      ))}
    </>
  );
}

/** What an Import with this subscription would get, if there were one. */
function Attempt() {
  const { namespace, info } = useSession();
  const place = namespace === "*" ? (info.namespaces?.[0] ?? "default") : namespace;
  const names = useNames(namespace);
  const [text, setText] = useState("");
  const [checked, setChecked] = useState<{ text: string; checked: Checked } | null>(null);
  const [result, setResult] = useState<Forecast | Problem | null>(null);
  const valid = useSettled(checked?.text === text && checked.checked.ok ? text : "", 150);
  useEffect(() => {
    setResult(null);
    if (!valid) return;
    const end = new AbortController();
    const resource = {
      apiVersion: "streambroker.io/v1alpha1",
      kind: "Import",
      metadata: { name: "console-attempt", namespace: place },
      spec: { job: "console-attempt", port: "in", subscription: valid },
    };
    post<Forecast>("whatif", { resources: [resource] }, { namespace: place }, end.signal).then(setResult, (error) => {
      if (!end.signal.aborted) setResult(error as Problem);
    });
    return () => end.abort();
  }, [valid, place]);
  return (
    <Card title="Try a subscription" aside={<span class="muted">nothing is stored</span>}>
      <Editor
        kind="subscription"
        label="Subscription of an Import that does not exist yet"
        value={text}
        names={names}
        namespace={place}
        onInput={setText}
        onChecked={(one, answer) => setChecked({ text: one, checked: answer })}
      />
      {result instanceof Problem && <Failure error={result} />}
      {result && !(result instanceof Problem) && <ForecastList forecast={result} />}
    </Card>
  );
}

/** The subscription of the chosen Import: what another one would add and cut. */
function Attached({ port }: { port: string }) {
  const key = parsePort(port);
  const loaded = useLoaded(key && `port Import ${port}`, (signal) =>
    ask<Manifest>(portPath("Import", key!), { query: { namespace: key!.namespace }, signal }),
  );
  if (loaded.data?.body.spec.subscription === undefined) return null;
  const common = { answer: loaded.data, reload: loaded.reload, port };
  return (
    <Card title="Change what it imports" aside={<span class="muted">nothing is changed before you apply it</span>}>
      <Expression part="subscription" {...common} />
      <hr />
      <Expression part="filter" {...common} />
    </Card>
  );
}

export function Why({ query }: { query: Record<string, string> }) {
  const { namespace } = useSession();
  const exports = usePorts("exports", namespace);
  const imports = usePorts("imports", namespace);
  return (
    <div class="page">
      <div class="pickers">
        <Picker label="Export" ports={exports} value={query.export ?? ""} choose={(one) => go("why", { ...query, export: one })} />
        <Picker label="Import" ports={imports} value={query.import ?? ""} choose={(one) => go("why", { ...query, import: one })} />
      </div>
      {query.import || query.export ? (
        <>
          <Explained key={`${query.export} ${query.import}`} query={query} />
          {query.import && <Attached key={query.import} port={query.import} />}
        </>
      ) : (
        <>
          <Empty title="Choose an Export, an Import, or both" heading>
            <p>With both, each predicate is shown with its value. With one, the nearest others are shown.</p>
          </Empty>
          <Attempt />
        </>
      )}
    </div>
  );
}
