import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, forgetToken, isAway, onSignedOut, Problem, readToken, writeToken } from "./api";
import { announce, follow, useLink } from "./live";
import { Failure, Skeleton } from "./parts/bits";
import { go, link, usePlace, type Place, type View } from "./route";
import { SessionContext } from "./session";
import type { Info } from "./types";
import { Port } from "./views/port";
import { Rows } from "./views/rows";
import { Topology } from "./views/topology";
import { Why } from "./views/why";

const VIEWS: [View, string][] = [
  ["topology", "Topology"],
  ["port", "Ports"],
  ["why", "Why"],
  ["rows", "Rows"],
];
const THEME = "streambroker.theme";
const RETRY_MS = 1_500;

function useTheme(): [boolean, () => void] {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const [chosen, setChosen] = useState(sessionStorage.getItem(THEME));
  const [system, setSystem] = useState(preferred.matches);
  useEffect(() => {
    const update = () => setSystem(preferred.matches);
    preferred.addEventListener("change", update);
    return () => preferred.removeEventListener("change", update);
  }, []);
  const dark = chosen ? chosen === "dark" : system;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const toggle = () => {
    const next = dark ? "light" : "dark";
    sessionStorage.setItem(THEME, next);
    setChosen(next);
  };
  return [dark, toggle];
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--brand)" />
      <path d="M8 10c8 0 8 6 16 6M8 22c8 0 8-6 16-6" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round" />
      <circle cx="8" cy="10" r="3" fill="#fff" />
      <circle cx="8" cy="22" r="3" fill="#fff" />
      <circle cx="24" cy="16" r="3.6" fill="#fff" />
    </svg>
  );
}

function SignIn({ done, reason }: { done: () => void; reason: string }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(reason);
  const [busy, setBusy] = useState(false);
  const submit = async () => {
    setBusy(true);
    try {
      await ask<Info>("ui", { token: token.trim() });
      writeToken(token.trim());
      done();
    } catch (problem) {
      setError((problem as Problem).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Logo />
        <h1>Streambroker console</h1>
        <p class="muted">Sign in with a token of this broker. It stays in this tab, until you close it or sign out.</p>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          autofocus
          value={token}
          aria-invalid={!!error}
          aria-describedby="token-error"
          onInput={(event) => setToken(event.currentTarget.value)}
        />
        <p id="token-error" class="bad" role="alert">
          {error}
        </p>
        <button type="submit" class="primary" disabled={!token.trim() || busy}>
          {busy ? "Signing in…" : "Sign in"}
        </button>
      </form>
    </main>
  );
}

function LinkState() {
  const state = useLink();
  const words = { live: "Live", connecting: "Connecting", away: "Reconnecting", refused: "No events" };
  return (
    <span class={`link ${state}`} role="status">
      <span class="link-dot" aria-hidden="true" />
      {words[state]}
    </span>
  );
}

function Help({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const keys: [string, string][] = [
    ["/", "search jobs"],
    ["1 … 4", "topology, ports, why, rows"],
    ["arrow keys", "choose a job in the drawing"],
    ["Enter", "focus the chosen job"],
    ["+ − 0", "zoom, show all"],
    ["Esc", "close what is open"],
    ["t", "dark or light"],
    ["?", "this list"],
  ];
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClose={close}>
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {keys.map(([key, text]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}

function useKeys(toggleTheme: () => void, help: () => void): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const typing = (event.target as HTMLElement).closest("input, textarea, select, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const view = VIEWS[Number(event.key) - 1];
      if (view) go(view[0]);
      else if (event.key === "t") toggleTheme();
      else if (event.key === "?") help();
      else if (event.key === "/") {
        event.preventDefault();
        const field = () => document.getElementById("search")?.focus();
        if (document.getElementById("search")) return field();
        go("topology");
        setTimeout(field, 50);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [toggleTheme]);
}

function Namespaces({ info, namespace, choose }: { info: Info; namespace: string; choose: (one: string) => void }) {
  const all = [...(info.allNamespaces ? ["*"] : []), ...(info.namespaces ?? [])];
  if (!all.includes(namespace)) all.push(namespace);
  return (
    <>
      <label class="hidden" for="namespace">
        Namespace
      </label>
      <select id="namespace" value={namespace} onChange={(event) => choose(event.currentTarget.value)}>
        {all.map((one) => (
          <option key={one} value={one}>
            {one === "*" ? "all namespaces" : one}
          </option>
        ))}
      </select>
    </>
  );
}

function Content({ place }: { place: Place }) {
  if (place.view === "port") return <Port query={place.query} />;
  if (place.view === "why") return <Why query={place.query} />;
  if (place.view === "rows") return <Rows query={place.query} />;
  return <Topology query={place.query} />;
}

function startNamespace(info: Info): string {
  const all = info.namespaces ?? [];
  return all.includes("default") || all.length === 0 ? "default" : (all[0] ?? "default");
}

function Frame(props: { info: Info; dark: boolean; toggleTheme: () => void; signOut: () => void }) {
  const { info, dark } = props;
  const place = usePlace();
  const [chosen, setChosen] = useState(() => place.query.ns ?? startNamespace(info));
  const [help, setHelp] = useState(false);
  const namespace = place.query.ns ?? chosen;
  useEffect(() => setChosen(namespace), [namespace]);
  useEffect(() => {
    const end = new AbortController();
    void follow(namespace, end.signal);
    return () => end.abort();
  }, [namespace]);
  useKeys(props.toggleTheme, () => setHelp(true));
  const session = useMemo(() => ({ info, namespace, dark }), [info, namespace, dark]);
  return (
    <SessionContext.Provider value={session}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={link("topology")}>
          <Logo />
          <span>streambroker</span>
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([view, title]) => (
            <a key={view} href={link(view)} aria-current={place.view === view ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <div class="top-end">
          <LinkState />
          {info.readOnly && <span class="badge idle">read-only</span>}
          <Namespaces info={info} namespace={namespace} choose={(one) => (setChosen(one), go(place.view, { ns: one }))} />
          <button type="button" class="icon" aria-label={dark ? "Use light colours" : "Use dark colours"} onClick={props.toggleTheme}>
            {dark ? "☀" : "☾"}
          </button>
          <button type="button" class="icon" aria-label="Keys" onClick={() => setHelp(true)}>
            ?
          </button>
          {info.authentication && (
            <button type="button" onClick={props.signOut}>
              Sign out
            </button>
          )}
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        <Content place={place} />
      </main>
      <footer>
        <span>streambroker {info.version}</span>
        <a href="./licenses.txt">Licences</a>
      </footer>
      {help && <Help close={() => setHelp(false)} />}
    </SessionContext.Provider>
  );
}

export function App() {
  const [dark, toggleTheme] = useTheme();
  const [info, setInfo] = useState<Info | null>(null);
  const [error, setError] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  const [reason, setReason] = useState("");
  const again = () => setRound((was) => was + 1);
  useEffect(() => {
    onSignedOut(() => {
      forgetToken();
      setReason("The broker does not accept the token any more.");
      setInfo(null);
      again();
    });
  }, []);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    ask<Info>("ui").then(
      (answer) => {
        setInfo(answer.body);
        setError(null);
        announce();
      },
      (problem: Problem) => {
        setError(problem);
        if (isAway(problem)) timer = setTimeout(again, RETRY_MS);
      },
    );
    return () => clearTimeout(timer);
  }, [round]);
  const signOut = () => {
    forgetToken();
    setReason("");
    setInfo(null);
    location.hash = "";
    again();
  };
  if (error && !info) {
    return (
      <main class="sign-in">
        <div>
          <Failure error={error} retry={again} />
          {readToken() && (
            <button type="button" onClick={signOut}>
              Sign out
            </button>
          )}
        </div>
      </main>
    );
  }
  if (!info) {
    return (
      <main class="sign-in">
        <Skeleton />
      </main>
    );
  }
  if (!info.namespaces) return <SignIn done={again} reason={reason} />;
  return <Frame info={info} dark={dark} toggleTheme={toggleTheme} signOut={signOut} />;
}
