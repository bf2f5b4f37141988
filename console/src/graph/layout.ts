/** Places for nodes: columns from sources to sinks. Nodes that have a place keep it. */

export interface Point {
  x: number;
  y: number;
}

export interface Line {
  from: string;
  to: string;
}

const COLUMN = 310;
const ROW = 96;
const LONGEST_COLUMN = 24;

interface Neighbours {
  before: Map<string, string[]>;
  after: Map<string, string[]>;
}

function neighbours(ids: readonly string[], lines: readonly Line[]): Neighbours {
  const before = new Map(ids.map((id) => [id, [] as string[]]));
  const after = new Map(ids.map((id) => [id, [] as string[]]));
  for (const { from, to } of lines) {
    if (from === to || !before.has(from) || !before.has(to)) continue;
    before.get(to)?.push(from);
    after.get(from)?.push(to);
  }
  return { before, after };
}

/** The nodes in an order from sources to sinks; lines that close a ring are not regarded. */
function inOrder(ids: readonly string[], after: Map<string, string[]>): string[] {
  const seen = new Set<string>();
  const order: string[] = [];
  for (const start of ids) {
    if (seen.has(start)) continue;
    seen.add(start);
    const stack = [{ id: start, next: 0 }];
    for (let top = stack.at(-1); top; top = stack.at(-1)) {
      const following = after.get(top.id)?.[top.next++];
      if (following === undefined) order.push(stack.pop()!.id);
      else if (!seen.has(following)) {
        seen.add(following);
        stack.push({ id: following, next: 0 });
      }
    }
  }
  return order.reverse();
}

function layers(ids: readonly string[], near: Neighbours): string[][] {
  const sources = ids.filter((id) => !near.before.get(id)?.length);
  const order = inOrder([...sources, ...ids], near.after);
  const place = new Map(order.map((id, index) => [id, index]));
  const depth = new Map<string, number>();
  for (const id of order) {
    const earlier = (near.before.get(id) ?? []).filter((one) => place.get(one)! < place.get(id)!);
    depth.set(id, earlier.reduce((most, one) => Math.max(most, (depth.get(one) ?? 0) + 1), 0));
  }
  const columns: string[][] = [];
  for (const id of ids) (columns[depth.get(id) ?? 0] ??= []).push(id);
  return columns;
}

/** Order each column by the mean place of the neighbours, forth and back, to avoid crossings. */
function untangle(columns: string[][], near: Neighbours): void {
  const row = new Map<string, number>();
  const number = (column: string[]) => column.forEach((id, index) => row.set(id, index));
  columns.forEach(number);
  for (let sweep = 0; sweep < 6; sweep++) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const mean = (id: string) => {
        const around = (forth ? near.before : near.after).get(id) ?? [];
        return around.length
          ? around.reduce((sum, one) => sum + (row.get(one) ?? 0), 0) / around.length
          : (row.get(id) ?? 0);
      };
      const means = new Map(column.map((id) => [id, mean(id)]));
      column.sort((a, b) => means.get(a)! - means.get(b)! || (a < b ? -1 : 1));
      number(column);
    }
  }
}

function placeAll(ids: readonly string[], lines: readonly Line[]): Map<string, Point> {
  const near = neighbours(ids, lines);
  const linked = (id: string) => near.before.get(id)!.length + near.after.get(id)!.length > 0;
  const columns = layers(ids.filter(linked), near);
  untangle(columns, near);
  const places = new Map<string, Point>();
  let x = 0;
  let bottom = 0;
  for (const column of columns) {
    const height = Math.min(column.length, LONGEST_COLUMN);
    column.forEach((id, index) => {
      const y = (index % LONGEST_COLUMN) - (height - 1) / 2;
      places.set(id, { x: x + Math.floor(index / LONGEST_COLUMN) * COLUMN * 0.75, y: y * ROW });
    });
    bottom = Math.max(bottom, (height / 2) * ROW);
    x += COLUMN + Math.floor((column.length - 1) / LONGEST_COLUMN) * COLUMN * 0.75;
  }
  const alone = ids.filter((id) => !linked(id));
  const wide = Math.max(columns.length, Math.ceil(Math.sqrt(alone.length / 3)), 1);
  const top = columns.length ? bottom + ROW : 0;
  alone.forEach((id, index) => {
    places.set(id, { x: (index % wide) * COLUMN, y: top + Math.floor(index / wide) * ROW });
  });
  return places;
}

function placeOne(id: string, near: Neighbours, places: Map<string, Point>): Point {
  const known = (all: string[] | undefined) =>
    (all ?? []).map((one) => places.get(one)).filter((one): one is Point => !!one);
  const before = known(near.before.get(id));
  const after = known(near.after.get(id));
  const around = [...before, ...after];
  const all = [...places.values()];
  let x = Math.min(0, ...all.map((one) => one.x));
  if (before.length) x = Math.max(...before.map((one) => one.x)) + COLUMN;
  else if (after.length) x = Math.min(...after.map((one) => one.x)) - COLUMN;
  const lowest = Math.max(0, ...all.map((one) => one.y + ROW));
  const wanted = around.length ? around.reduce((sum, one) => sum + one.y, 0) / around.length : lowest;
  const free = (y: number) => all.every((one) => Math.abs(one.x - x) > 200 || Math.abs(one.y - y) >= ROW - 1);
  for (let step = 0; ; step++) {
    const y = wanted + (step % 2 ? 1 : -1) * Math.ceil(step / 2) * ROW;
    if (free(y)) return { x, y };
  }
}

/** Return the place of each node. Nodes in `kept` stay where they are. */
export function arrange(
  ids: readonly string[],
  lines: readonly Line[],
  kept: ReadonlyMap<string, Point>,
): Map<string, Point> {
  const places = new Map<string, Point>();
  for (const id of ids) {
    const point = kept.get(id);
    if (point) places.set(id, point);
  }
  if (places.size < ids.length / 2) return placeAll(ids, lines);
  const near = neighbours(ids, lines);
  for (const id of ids) if (!places.has(id)) places.set(id, placeOne(id, near, places));
  return places;
}
