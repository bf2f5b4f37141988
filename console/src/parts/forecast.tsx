/** What a change would add and cut, before it is made. */
import { link } from "../route";
import type { Forecast, Route } from "../types";
import { plural } from "../format";

const MAX_SHOWN = 50;

function Change({ sign, route }: { sign: string; route: Route }) {
  const words: Record<string, string> = { "+": "added", "−": "cut", "~": "changed" };
  const kind = { "+": "add", "−": "cut", "~": "change" }[sign];
  return (
    <li class={`change ${kind}`}>
      <span class="sign" aria-label={words[sign]}>
        {sign}
      </span>
      <a href={link("why", { import: route.import, export: route.export })}>
        {route.export} <span aria-hidden="true">→</span> {route.import}
      </a>
      {route.reason && <span class="muted">{route.reason}</span>}
      {sign === "~" && (
        <code>
          {route.was?.filter ?? "every row"} → {route.filter ?? "every row"}
        </code>
      )}
    </li>
  );
}

export function ForecastList({ forecast }: { forecast: Forecast }) {
  const { added, cut, changed, kept, problems } = forecast;
  const nothing = !added.length && !cut.length && !changed.length && !problems.length;
  const refused = problems.some((one) => one.refused);
  const title = refused ? "The broker would refuse this" : nothing ? "No route would change" : "This would change routes";
  return (
    <div class="forecast" role="status">
      <p class="forecast-head">
        <strong>{title}</strong>
        <span class="count add">+{added.length} added</span>
        <span class="count cut">−{cut.length} cut</span>
        <span class="muted">
          {plural(changed.length, "route")} with another filter, {kept} kept
        </span>
      </p>
      <ul>
        {problems.map((one, index) => (
          <li key={index} class="change cut">
            <span class="sign" aria-label="problem">
              !
            </span>
            {String(one.message ?? one.code ?? "")}
          </li>
        ))}
        {cut.slice(0, MAX_SHOWN).map((one) => (
          <Change key={`-${one.export}${one.import}`} sign="−" route={one} />
        ))}
        {added.slice(0, MAX_SHOWN).map((one) => (
          <Change key={`+${one.export}${one.import}`} sign="+" route={one} />
        ))}
        {changed.slice(0, MAX_SHOWN).map((one) => (
          <Change key={`~${one.export}${one.import}`} sign="~" route={one} />
        ))}
      </ul>
    </div>
  );
}
