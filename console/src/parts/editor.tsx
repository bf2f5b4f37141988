/** A field for a subscription or a filter: completion, and errors at their place while one types. */
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { post } from "../api";
import { literal } from "../format";
import { useSettled } from "../live";
import type { Checked, Names } from "../types";

interface Props {
  kind: "subscription" | "filter";
  label: string;
  value: string;
  names: Names | null;
  namespace: string;
  exportPort?: string;
  readOnly?: boolean;
  onInput: (text: string) => void;
  onChecked?: (text: string, checked: Checked) => void;
}

interface Choice {
  text: string;
  detail: string;
}

/** What may follow at the caret: names, or the values of the name before a comparison. */
export function completions(before: string, names: Names, kind: Props["kind"]): { word: string; choices: Choice[] } {
  const word = /[\w.]*$/.exec(before)?.[0] ?? "";
  const compared = /([A-Za-z_][\w.]*)\s*[=!<>]=?\s*"?([^"\s&|()]*)$/.exec(before);
  if (kind === "subscription" && compared) {
    const found = names.properties.find((one) => one.name === compared[1]);
    const quoted = before.slice(compared.index).match(/"[^"]*$/)?.[0] ?? null;
    const begun = quoted ?? compared[2] ?? "";
    const values = (found?.values ?? []).map(literal).filter((one) => one.startsWith(begun) && one !== begun);
    return { word: begun, choices: values.map((one) => ({ text: one, detail: "value" })) };
  }
  if (/"[^"]*$/.test(before.replace(/"[^"]*"/g, ""))) return { word: "", choices: [] };
  // Without a begun word, names are offered only where a predicate begins.
  if (!word && !/(^|&&|\|\||!|\()\s*$/.test(before)) return { word: "", choices: [] };
  const all =
    kind === "subscription"
      ? names.properties.map((one) => ({ text: one.name, detail: one.values.slice(0, 3).map(literal).join(", ") }))
      : names.columns.map((one) => ({ text: one.name, detail: one.type }));
  const lower = word.toLowerCase();
  return { word, choices: all.filter((one) => one.text.toLowerCase().startsWith(lower) && one.text !== word) };
}

/** The parts of a text before, at and behind a mistake of one line. */
export function mark(text: string, checked: Checked): [string, string, string] {
  const lines = text.split("\n");
  const line = (checked.line ?? 1) - 1;
  const start = lines.slice(0, line).reduce((sum, one) => sum + one.length + 1, 0) + (checked.column ?? 1) - 1;
  const end = start + Math.max(1, (checked.endColumn ?? 0) - (checked.column ?? 0));
  return [text.slice(0, start), text.slice(start, end) || " ", text.slice(end)];
}

export function useCheck(props: Pick<Props, "kind" | "value" | "namespace" | "exportPort" | "onChecked">): Checked | null {
  const text = useSettled(props.value, 150);
  const [result, setResult] = useState<{ text: string; checked: Checked } | null>(null);
  useEffect(() => {
    if (!text.trim()) return setResult(null);
    const end = new AbortController();
    const query = { namespace: props.exportPort ? props.exportPort.split("/")[0] : props.namespace };
    const body = { kind: props.kind, text, ...(props.exportPort ? { export: props.exportPort } : {}) };
    post<Checked>("check", body, query, end.signal).then(
      (checked) => {
        if (end.signal.aborted) return;
        setResult({ text, checked });
        props.onChecked?.(text, checked);
      },
      () => undefined,
    );
    return () => end.abort();
  }, [text, props.kind, props.namespace, props.exportPort]);
  return result && result.text === props.value ? result.checked : null;
}

export function Editor(props: Props) {
  const id = useId();
  const field = useRef<HTMLTextAreaElement>(null);
  const [caret, setCaret] = useState<number | null>(null);
  const [active, setActive] = useState(0);
  const checked = useCheck(props);
  const wrong = checked && !checked.ok ? mark(props.value, checked) : null;
  const offer =
    caret !== null && props.names && !props.readOnly
      ? completions(props.value.slice(0, caret), props.names, props.kind)
      : { word: "", choices: [] };
  const choices = offer.choices.slice(0, 8);
  const open = choices.length > 0;

  const track = () => {
    setCaret(field.current?.selectionStart ?? null);
    setActive(0);
  };
  const take = (choice: Choice) => {
    const input = field.current;
    if (!input) return;
    const at = caret ?? input.value.length;
    // At once, not with the next drawing: keys that follow have to find the text and the caret there.
    input.setRangeText(choice.text, at - offer.word.length, at, "end");
    input.focus();
    props.onInput(input.value);
    setCaret(null);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if ((event.ctrlKey || event.metaKey) && event.key === " ") return event.preventDefault(), track();
    if (!open) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setActive((active + (event.key === "ArrowDown" ? 1 : choices.length - 1)) % choices.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      const chosen = choices[active];
      if (chosen) take(chosen);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      setCaret(null);
    }
  };

  return (
    <div class="editor">
      <label for={id}>{props.label}</label>
      <div class={`editor-field ${wrong ? "wrong" : ""}`}>
        <div class="editor-marks" aria-hidden="true">
          {wrong ? (
            <>
              {wrong[0]}
              <mark>{wrong[1]}</mark>
              {wrong[2]}
            </>
          ) : (
            props.value
          )}
          {"\u200b"}
        </div>
        <textarea
          ref={field}
          id={id}
          rows={1}
          spellcheck={false}
          autocomplete="off"
          autocapitalize="off"
          readOnly={props.readOnly}
          value={props.value}
          placeholder={props.kind === "filter" ? "every row" : "nothing"}
          aria-haspopup="listbox"
          aria-autocomplete="list"
          aria-controls={`${id}-list`}
          aria-activedescendant={open ? `${id}-${active}` : undefined}
          aria-invalid={!!wrong}
          aria-describedby={`${id}-message`}
          onInput={(event) => {
            props.onInput(event.currentTarget.value);
            track();
          }}
          onKeyDown={onKeyDown}
          onBlur={() => setTimeout(() => setCaret(null), 150)}
        />
        <ul class="choices" id={`${id}-list`} role="listbox" aria-label="Completions" hidden={!open}>
          {choices.map((choice, index) => (
            <li
              key={choice.text}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === active}
              onMouseDown={(event) => {
                event.preventDefault();
                take(choice);
              }}
            >
              <code>{choice.text}</code> <span class="muted">{choice.detail}</span>
            </li>
          ))}
        </ul>
      </div>
      <p class={`editor-message ${wrong ? "bad" : "muted"}`} id={`${id}-message`} role="status">
        {wrong ? checked?.message : checked?.ok ? "✓ valid" : ""}
      </p>
    </div>
  );
}
