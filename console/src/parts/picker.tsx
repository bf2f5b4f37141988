import { useEffect, useId, useState } from "preact/hooks";

interface Props {
  label: string;
  ports: readonly string[];
  value: string;
  choose: (port: string) => void;
}

/** A field that offers ports. It chooses once its text names one, or on Enter. */
export function Picker({ label, ports, value, choose }: Props) {
  const id = useId();
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return (
    <div class="picker">
      <label for={id}>{label}</label>
      <input
        id={id}
        list={`${id}-ports`}
        value={text}
        spellcheck={false}
        autocomplete="off"
        placeholder="namespace/job/pe/port"
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          if (next !== value && (next === "" || ports.includes(next))) choose(next);
        }}
        onKeyDown={(event) => event.key === "Enter" && text !== value && choose(text.trim())}
      />
      <datalist id={`${id}-ports`}>
        {ports.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
    </div>
  );
}
