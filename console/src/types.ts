/** What the broker answers; see docs/rest.md. */

export type State = "waits" | "stalled" | "away" | "flows" | "idle" | "ended" | "stale" | "unknown";

export interface Info {
  readOnly: boolean;
  peek: boolean;
  authentication: boolean;
  version: string;
  namespaces?: string[];
  allNamespaces?: boolean;
}

export interface GraphNode {
  id: string;
  kind: "job" | "group" | "namespace";
  namespace: string;
  application?: string;
  job?: string;
  jobs?: number;
  exports: number;
  imports: number;
  state: State | null;
  matched: boolean;
  external?: boolean;
}

export interface ListedRoute {
  export: string;
  import: string;
  filter: string | null;
  policy: string;
  state: State;
  rowsPerSecond: number | null;
  lagRows: number | null;
  lagSeconds: number | null;
}

export interface GraphEdge {
  id: string;
  from: string;
  to: string;
  routes: number;
  rowsPerSecond: number | null;
  state: State | null;
  list?: ListedRoute[];
}

export interface Counts {
  jobs: number;
  routes: number;
}

export interface Graph {
  folded: boolean;
  nodes: GraphNode[];
  edges: GraphEdge[];
  total: Counts;
  selected: Counts;
  hidden: Counts;
  version: string;
}

export type Kind = "Export" | "Import";
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface Column {
  name: string;
  type: string;
}

export interface Manifest {
  apiVersion: string;
  kind: Kind;
  metadata: { name: string; namespace: string; generation?: number; [name: string]: unknown };
  spec: {
    job: string;
    pe: number;
    port: string;
    subscription?: string;
    filter?: string;
    properties?: JsonObject;
    schema?: Column[];
    description?: string;
    owner?: string;
    tags?: string[];
    columnComments?: Record<string, string>;
    [name: string]: unknown;
  };
  status?: Record<string, unknown>;
}

export interface TopRoute {
  export: string;
  import: string;
  policy: string;
  rowsPerSecond: number | null;
  bytesPerSecond: number | null;
  lagRows: number | null;
  lagSeconds: number | null;
  lagEpochs: number | null;
  stalledSeconds?: number | null;
  congestion: number | null;
  waiting: boolean;
  alive: boolean;
  ended: boolean | null;
  readToEnd: boolean | null;
  filteredRows: number | null;
  droppedRows: number | null;
  lostRows: number | null;
  blockedSeconds: number | null;
  exportProblem?: string | null;
  importProblem?: string | null;
  age: number | null;
}

export interface Top {
  routes: TopRoute[];
  sides: JsonObject[];
  rules: JsonObject[];
  ruleWaiting: JsonObject[];
}

export interface Route {
  export: string;
  import: string;
  filter: string | null;
  policy: string;
  reason?: string;
  was?: { filter?: string | null; policy?: string };
}

export interface Forecast {
  added: Route[];
  cut: Route[];
  changed: Route[];
  kept: number;
  problems: { message?: string; refused: boolean; [name: string]: unknown }[];
}

export interface Predicate {
  text: string;
  value: boolean | null;
  why: string;
}

export interface Pair {
  export: string;
  import: string;
  matched: boolean;
  distance: number;
  message: string;
  reason: string | null;
  predicates: Predicate[];
  misses: { text: string; wanted: boolean; why: string }[][];
  obstacles: { changes: number; message: string; reason: string }[];
}

export interface Explanation {
  export: string | null;
  import: string | null;
  matched: number;
  total: number;
  pairs: Pair[];
  lint: { message?: string; code?: string; [name: string]: unknown }[];
}

export interface Checked {
  ok: boolean;
  canonical?: string;
  message?: string;
  code?: string;
  line?: number;
  column?: number;
  endColumn?: number;
}

export interface Names {
  properties: { name: string; values: Json[] }[];
  columns: Column[];
}

export interface HistoryEntry {
  time: string;
  kind: Kind;
  port: string;
  principal: string;
  action: string;
  generation: number;
  changes: { field: string; old: string | null; new: string | null }[];
}

export interface Rows {
  columns: Column[];
  rows: Json[][];
  truncated: boolean;
  stream: string;
  schemaVersions?: { version: number; since: string | null }[];
  policies?: string;
}
