/** Rows per second of a port's routes, since the page shows them. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { number } from "../format";

const MAX_POINTS = 720;
export type Samples = [number[], (number | null)[]];

const kept = new Map<string, Samples>();

/** Keep a sample of a port's rate, at most one a second; return all of them. */
export function sample(port: string, rows: number | null): Samples {
  const [times, rates] = kept.get(port) ?? [[], []];
  const now = Date.now() / 1000;
  if (now - (times.at(-1) ?? 0) >= 1) {
    times.push(now);
    rates.push(rows);
  }
  const samples: Samples = [times.slice(-MAX_POINTS), rates.slice(-MAX_POINTS)];
  kept.set(port, samples);
  return samples;
}

export function Rates({ samples, dark }: { samples: Samples; dark: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    if (!box.current) return;
    const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: box.current.clientWidth || 300,
        height: 120,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.15)] } },
        axes: [axis, { ...axis, size: 48, values: (_, ticks) => ticks.map((one) => number(one)) }],
        series: [{}, { stroke: colour("accent"), fill: colour("accent-soft"), width: 2, points: { show: false } }],
      },
      samples as uPlot.AlignedData,
      box.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: box.current?.clientWidth ?? 300, height: 120 }));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [dark]);
  useEffect(() => plot.current?.setData(samples as uPlot.AlignedData), [samples]);
  const last = samples[1].at(-1);
  return <div ref={box} class="rates" role="img" aria-label={`Rows per second, now ${number(last)}`} />;
}
