/** The last rows of an export. */
import { useState } from "preact/hooks";
import { get, Problem } from "../api";
import { plural, text } from "../format";
import { Card, Empty, Failure, Skeleton } from "../parts/bits";
import { Editor } from "../parts/editor";
import { useNames, usePorts } from "../parts/names";
import { Picker } from "../parts/picker";
import { parsePort, portPath } from "../ports";
import { go } from "../route";
import { useSession } from "../session";
import type { Checked, Rows as Answer } from "../types";

const LIMITS = [20, 50, 200, 1000];

function Table({ answer }: { answer: Answer }) {
  const numeric = answer.columns.map((one) => /int|long|float|double|decimal|short|byte/i.test(text(one.type)));
  return (
    <div class="scroll rows" tabIndex={0} role="region" aria-label="Rows">
      <table>
        <thead>
          <tr>
            {answer.columns.map((one, index) => (
              <th key={one.name} scope="col" class={numeric[index] ? "num" : ""}>
                {one.name} <span class="type">{text(one.type)}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {answer.rows.map((row, index) => (
            <tr key={index}>
              {row.map((value, column) => (
                <td key={column} class={numeric[column] ? "num" : ""}>
                  {value === null ? <span class="muted">null</span> : text(value)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Which version the columns have, once there was more than one, and what policies withhold. */
function versionText(answer: Answer): string {
  const newest = answer.schemaVersions?.at(-1);
  const version = newest?.since ? `; columns of version ${newest.version}, since ${newest.since}` : "";
  return answer.policies ? `${version}; withheld by ${answer.policies}` : version;
}

export function Rows({ query }: { query: Record<string, string> }) {
  const { info, namespace } = useSession();
  const exports = usePorts("exports", namespace);
  const names = useNames(namespace);
  const [filter, setFilter] = useState("");
  const [checked, setChecked] = useState<{ text: string; checked: Checked } | null>(null);
  const [columns, setColumns] = useState("");
  const [limit, setLimit] = useState(50);
  const [busy, setBusy] = useState(false);
  const [result, setResult] = useState<Answer | Problem | null>(null);
  const port = query.export ?? "";
  const key = parsePort(port);
  const valid = filter === "" || (checked?.text === filter && checked.checked.ok);

  const peek = async () => {
    if (!key) return;
    setBusy(true);
    const request = { namespace: key.namespace, filter, columns: columns.replace(/\s/g, ""), limit };
    try {
      setResult(await get<Answer>(portPath("Export", key, "rows"), request));
    } catch (error) {
      setResult(error as Problem);
    } finally {
      setBusy(false);
    }
  };

  if (!info.peek) {
    return (
      <div class="page">
        <Empty title="This broker shows no rows" heading>
          <p>Reading rows through the broker is switched off.</p>
        </Empty>
      </div>
    );
  }
  return (
    <div class="page">
      <h1 class="hidden">Rows</h1>
      <Card title="Peek" aside={<span class="muted">reads the last rows; no reader waits for it</span>}>
        <form
          class="peek"
          onSubmit={(event) => {
            event.preventDefault();
            void peek();
          }}
        >
          <div class="peek-fields">
            <Picker label="Export" ports={exports} value={port} choose={(one) => (setResult(null), go("rows", { export: one }))} />
            <div class="picker">
              <label for="columns">Columns</label>
              <input id="columns" value={columns} placeholder="all, or price,size" onInput={(event) => setColumns(event.currentTarget.value)} />
            </div>
            <div class="picker short">
              <label for="limit">Rows</label>
              <select id="limit" value={limit} onChange={(event) => setLimit(Number(event.currentTarget.value))}>
                {LIMITS.map((one) => (
                  <option key={one} value={one}>
                    {one}
                  </option>
                ))}
              </select>
            </div>
          </div>
          <Editor
            kind="filter"
            label="Filter"
            value={filter}
            names={names}
            namespace={namespace}
            exportPort={key && exports.includes(port) ? port : undefined}
            onInput={setFilter}
            onChecked={(one, answer) => setChecked({ text: one, checked: answer })}
          />
          <div class="actions">
            <button type="submit" class="primary" disabled={!key || !valid || busy}>
              {busy ? "Reading…" : "Peek"}
            </button>
            {result && !(result instanceof Problem) && (
              <span class="muted" role="status">
                {plural(result.rows.length, "row")}, the newest at the end
                {result.truncated ? "; there are more" : ""}
                {versionText(result)}
              </span>
            )}
          </div>
        </form>
      </Card>
      {busy && !result && <Skeleton lines={6} />}
      {result instanceof Problem && <Failure error={result} retry={() => void peek()} />}
      {result && !(result instanceof Problem) && result.rows.length > 0 && <Table answer={result} />}
      {result && !(result instanceof Problem) && result.rows.length === 0 && (
        <Empty title="No rows">
          <p>{filter ? "No row that the export still has passes the filter." : "The export has no rows at the moment."}</p>
        </Empty>
      )}
      {!result && !busy && !port && (
        <Empty title="Choose an Export">
          <p>The page shows its last rows, with a filter if you like.</p>
        </Empty>
      )}
    </div>
  );
}
