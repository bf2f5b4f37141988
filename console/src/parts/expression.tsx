/** The subscription or the filter of an Import, with its editor. */
import { useEffect, useState } from "preact/hooks";
import type { Answer } from "../api";
import { useSession } from "../session";
import type { Checked, Manifest } from "../types";
import { Change } from "./change";
import { Editor } from "./editor";
import { useNames } from "./names";

/** A port as it was read, with what loads it again. */
export interface LoadedPort {
  answer: Answer<Manifest>;
  reload: () => void;
  port: string;
}

/** A text that one edits; without an edit it follows what the broker has. */
export function useDraft(current: string): [string, (text: string) => void, () => void] {
  const [draft, setDraft] = useState<string | null>(null);
  useEffect(() => setDraft((was) => (was === current ? null : was)), [current]);
  return [draft ?? current, setDraft, () => setDraft(null)];
}

/** The tag of the version that the text was begun with: a change by others in between is found. */
export function useBasis(changed: boolean, etag: string | null): string | null {
  const [basis, setBasis] = useState(etag);
  useEffect(() => {
    if (!changed) setBasis(etag);
  }, [changed, etag]);
  return basis;
}

export function Expression({ part, answer, reload, port }: LoadedPort & { part: "subscription" | "filter" }) {
  const { info } = useSession();
  const manifest = answer.body;
  const current = manifest.spec[part] ?? "";
  const [value, setValue, reset] = useDraft(current);
  const [checked, setChecked] = useState<{ text: string; checked: Checked } | null>(null);
  const names = useNames(manifest.metadata.namespace);
  const valid = value === "" ? part === "filter" : checked?.text === value && checked.checked.ok;
  const basis = useBasis(value !== current, answer.etag);
  const spec = valid && value !== current ? { ...manifest.spec, [part]: value || undefined } : null;
  return (
    <Change {...{ port, manifest, part, spec, reload, reset }} etag={basis}>
      <Editor
        kind={part}
        label={part === "filter" ? "Filter" : "Subscription"}
        value={value}
        names={names}
        namespace={manifest.metadata.namespace}
        readOnly={info.readOnly}
        onInput={setValue}
        onChecked={(one, result) => setChecked({ text: one, checked: result })}
      />
    </Change>
  );
}
