import type { Graph, GraphEdge, GraphNode, State } from "../types";

const IMPORTANCE: State[] = ["waits", "stalled", "away", "flows", "idle", "ended", "stale", "unknown"];

export function foremost(a: State | null, b: State | null): State | null {
  if (!a || !b) return a ?? b;
  return IMPORTANCE.indexOf(a) <= IMPORTANCE.indexOf(b) ? a : b;
}

const groupOf = (node: GraphNode): string => `group:${node.namespace}/${node.application ?? ""}`;

/** Combine the jobs of each application into one node; routes between two groups into one edge. */
export function fold(graph: Graph): Graph {
  const into = new Map<string, string>();
  const nodes = new Map<string, GraphNode>();
  for (const node of graph.nodes) {
    const group = node.kind === "job" && !node.external && node.application;
    const id = group ? groupOf(node) : node.id;
    into.set(node.id, id);
    const was = nodes.get(id);
    if (!group) nodes.set(id, node);
    else
      nodes.set(id, {
        id,
        kind: "group",
        namespace: node.namespace,
        application: node.application,
        jobs: (was?.jobs ?? 0) + 1,
        exports: (was?.exports ?? 0) + node.exports,
        imports: (was?.imports ?? 0) + node.imports,
        state: foremost(was?.state ?? null, node.state),
        matched: (was?.matched ?? false) || node.matched,
      });
  }
  const edges = new Map<string, GraphEdge>();
  for (const edge of graph.edges) {
    const [from, to] = [into.get(edge.from) ?? edge.from, into.get(edge.to) ?? edge.to];
    const id = `${from}>${to}`;
    const was = edges.get(id);
    const rates = [was?.rowsPerSecond, edge.rowsPerSecond].filter((one) => typeof one === "number");
    edges.set(id, {
      id,
      from,
      to,
      routes: (was?.routes ?? 0) + edge.routes,
      rowsPerSecond: rates.length ? rates.reduce((sum, one) => sum + one, 0) : null,
      state: foremost(was?.state ?? null, edge.state),
      list: from.startsWith("group:") || to.startsWith("group:") ? undefined : edge.list,
    });
  }
  return { ...graph, nodes: [...nodes.values()], edges: [...edges.values()] };
}

/** What a person calls this node. */
export function title(node: GraphNode): string {
  if (node.kind === "namespace") return node.namespace;
  if (node.kind === "group") return node.application || "no application";
  return node.job ?? node.id;
}
