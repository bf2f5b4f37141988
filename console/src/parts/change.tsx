/** Change a part of a port: edit, see what it would do, then apply it unless another caller has changed it. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, post, Problem } from "../api";
import { announce, useSettled } from "../live";
import { parsePort, portPath } from "../ports";
import { useSession } from "../session";
import type { Forecast, Manifest } from "../types";
import { ForecastList } from "./forecast";
import { Failure } from "./bits";

interface Props {
  port: string;
  manifest: Manifest;
  etag: string | null;
  part: "subscription" | "filter" | "properties";
  /** The new spec; null while the text is wrong or as before. */
  spec: Manifest["spec"] | null;
  reset: () => void;
  reload: () => void;
  children: ComponentChildren;
}

const draft = (manifest: Manifest, spec: Manifest["spec"]) => ({
  apiVersion: manifest.apiVersion,
  kind: manifest.kind,
  metadata: { name: manifest.metadata.name, namespace: manifest.metadata.namespace },
  spec,
});

type Foreseen = { key: string; forecast: Forecast | null; error: Problem | null };

function useForecast(props: Props): Foreseen | null {
  const key = props.spec ? JSON.stringify(props.spec) : "";
  const settled = useSettled(key, 300);
  const [state, setState] = useState<Foreseen | null>(null);
  const namespace = props.manifest.metadata.namespace;
  useEffect(() => {
    if (!settled) return setState(null);
    const end = new AbortController();
    const body = { resources: [draft(props.manifest, JSON.parse(settled))] };
    post<Forecast>("whatif", body, { namespace }, end.signal).then(
      (forecast) => setState({ key: settled, forecast, error: null }),
      (error) => end.signal.aborted || setState({ key: settled, forecast: null, error }),
    );
    return () => end.abort();
  }, [settled]);
  return state?.key === key ? state : null;
}

export function Change(props: Props) {
  const { info } = useSession();
  const [error, setError] = useState<Problem | null>(null);
  const [done, setDone] = useState("");
  const [busy, setBusy] = useState(false);
  const foreseen = useForecast(props);
  const forecast = foreseen?.forecast ?? null;
  const refused = forecast?.problems.some((one) => one.refused) ?? false;

  const apply = async () => {
    const key = parsePort(props.port);
    if (!key || !props.spec) return;
    setBusy(true);
    setError(null);
    const value = props.spec[props.part];
    const body = props.part === "properties" ? value : { [props.part]: value ?? null };
    try {
      await ask(portPath(props.manifest.kind, key, props.part), {
        method: "PUT",
        body,
        query: { namespace: key.namespace },
        headers: props.etag ? { "If-Match": props.etag } : {},
      });
      setDone("Applied.");
      announce();
    } catch (problem) {
      setError(problem as Problem);
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    if (props.spec) setDone("");
    setError(null);
  }, [props.spec && JSON.stringify(props.spec)]);

  return (
    <form
      class="change-form"
      onSubmit={(event) => {
        event.preventDefault();
        void apply();
      }}
    >
      {props.children}
      {props.spec && !foreseen && <p class="muted">Forecasting…</p>}
      {forecast && <ForecastList forecast={forecast} />}
      {foreseen?.error && <Failure error={foreseen.error} />}
      {error?.status === 412 ? (
        <div class="failure" role="alert">
          <strong>Changed meanwhile</strong>
          <p>Another caller changed this port after the page read it. Nothing was applied.</p>
          <button type="button" onClick={() => (setError(null), props.reset(), props.reload())}>
            Show the new version
          </button>
        </div>
      ) : (
        error && <Failure error={error} />
      )}
      {!info.readOnly && (
        <div class="actions">
          <button type="submit" class="primary" disabled={!forecast || refused || busy}>
            {busy ? "Applying…" : `Apply ${props.part}`}
          </button>
          {props.spec && (
            <button type="button" onClick={props.reset}>
              Discard
            </button>
          )}
          <span class="ok" role="status">
            {!props.spec && done}
          </span>
        </div>
      )}
    </form>
  );
}
