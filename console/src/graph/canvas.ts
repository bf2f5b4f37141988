/** The drawing of jobs and routes: Cytoscape on a canvas. */
import cytoscape from "cytoscape";
import type { Graph, GraphEdge, GraphNode, State } from "../types";
import { number, plural, rate } from "../format";
import { title } from "./fold";
import { arrange, type Point } from "./layout";
import { Movement } from "./movement";

/** Above this number of elements lines are straight, and the drawing moves as a picture. */
const MANY = 500;
const LABELLED = 60;
const WIDTH = 170;

interface Colours {
  surface: string;
  text: string;
  muted: string;
  border: string;
  accent: string;
  state: Record<State, string>;
}

const STATES: State[] = ["waits", "stalled", "away", "flows", "idle", "ended", "stale", "unknown"];

function readColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const state = Object.fromEntries(STATES.map((one) => [one, colour(one)]));
  return {
    surface: colour("surface"),
    text: colour("text"),
    muted: colour("muted"),
    border: colour("line"),
    accent: colour("accent"),
    state: state as Record<State, string>,
  };
}

const dot = (colour: string): string =>
  `data:image/svg+xml,${encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12"><circle cx="6" cy="6" r="5" fill="${colour}"/></svg>`,
  )}`;

export function nodeText(node: GraphNode): string {
  const count = (number: number, one: string) => (number ? [plural(number, one)] : []);
  const ports = [...count(node.exports, "export"), ...count(node.imports, "import")].join(" · ");
  if (node.external) return `other namespace: ${node.namespace}`;
  return node.kind === "job" ? ports : `${plural(node.jobs ?? 0, "job")} · ${plural(node.exports, "export")}`;
}

function edgeText(edge: GraphEdge): string {
  const filter = edge.list?.length === 1 ? edge.list[0]?.filter : null;
  const text = filter ?? (edge.routes > 1 ? `${number(edge.routes)} routes` : "");
  return text.length > 30 ? `${text.slice(0, 29)}…` : text;
}

const width = (rows: number | null): number => 1.5 + Math.min(6, Math.log10(1 + (rows ?? 0)));

function style(colours: Colours, many: boolean): cytoscape.StylesheetJson {
  const font = "Inter, system-ui, sans-serif";
  const ofState = (one: State): cytoscape.StylesheetJson => [
    { selector: `node[state = "${one}"]`, style: { "background-image": dot(colours.state[one]) } },
    {
      selector: `edge[state = "${one}"]`,
      style: { "line-color": colours.state[one], "target-arrow-color": colours.state[one] },
    },
  ];
  return [
    {
      selector: "node",
      style: {
        shape: "round-rectangle",
        width: WIDTH,
        height: 54,
        "background-color": colours.surface,
        "border-width": 1,
        "border-color": colours.border,
        "background-image": dot(colours.border),
        "background-width": "12px",
        "background-height": "12px",
        "background-position-x": "13px",
        "background-position-y": "50%",
        "background-clip": "none",
        label: "data(label)",
        color: colours.text,
        "font-family": font,
        "font-size": 13,
        "line-height": 1.35,
        "text-valign": "center",
        "text-halign": "right",
        "text-wrap": "wrap",
        "text-max-width": "132px",
        "text-justification": "left",
        "text-margin-x": 34 - WIDTH,
        "min-zoomed-font-size": 6,
      },
    },
    { selector: "node[kind != 'job']", style: { "border-width": 4, "border-style": "double" } },
    { selector: "node[?external]", style: { "border-style": "dashed", color: colours.muted } },
    {
      selector: "edge",
      style: {
        width: "data(width)",
        "line-color": colours.border,
        "line-cap": "round",
        "target-arrow-shape": "triangle",
        "target-arrow-color": colours.border,
        "arrow-scale": 0.9,
        "curve-style": many ? "straight" : "bezier",
        "source-endpoint": many ? "outside-to-node" : "90deg",
        "target-endpoint": many ? "outside-to-node" : "270deg",
      },
    },
    {
      selector: "edge[bend]",
      style: {
        "curve-style": "unbundled-bezier",
        "edge-distances": "endpoints",
        "control-point-weights": "data(weights)",
        "control-point-distances": "data(bend)",
      } as never,
    },
    {
      selector: "edge.labelled",
      style: {
        label: "data(label)",
        color: colours.text,
        "font-family": "Menlo, Consolas, DejaVu Sans Mono, monospace",
        "font-size": 11,
        "text-wrap": "wrap",
        "text-background-color": colours.surface,
        "text-background-opacity": 1,
        "text-background-padding": "4px",
        "text-background-shape": "roundrectangle",
        "text-border-width": 1,
        "text-border-color": colours.border,
        "text-border-opacity": 1,
        "min-zoomed-font-size": 7,
      },
    },
    {
      selector: "edge:loop",
      style: { "curve-style": "bezier", "source-endpoint": "outside-to-node", "target-endpoint": "outside-to-node" },
    },
    { selector: "edge.detailed", style: { label: "data(detail)", "z-index": 10 } },
    { selector: "edge[state = 'away']", style: { "line-style": "dashed" } },
    { selector: "edge[state = 'stale'], edge[state = 'unknown']", style: { "line-style": "dashed" } },
    ...STATES.flatMap(ofState),
    { selector: "node[?matched]", style: { "border-width": 2, "border-color": colours.accent } },
    { selector: "node.chosen", style: { "border-width": 3, "border-color": colours.accent } },
    { selector: "node:active", style: { "overlay-opacity": 0 } },
  ];
}

const same = (a: unknown, b: unknown): boolean =>
  a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

export class Canvas {
  private readonly cy: cytoscape.Core;
  private readonly movement: Movement;
  private places = new Map<string, Point>();
  private scope = "";
  private many = false;
  private labelled = false;

  constructor(box: HTMLElement, choose: (id: string | null) => void, open: (id: string) => void) {
    this.cy = cytoscape({
      container: box,
      autoungrabify: true,
      boxSelectionEnabled: false,
      selectionType: "single",
      minZoom: 0.02,
      maxZoom: 2.5,
      pixelRatio: Math.min(2, devicePixelRatio),
    });
    this.movement = new Movement(this.cy, box);
    this.cy.on("tap", (event) => {
      choose(event.target === this.cy ? null : this.jobOf(event.target as cytoscape.SingularElementArgument));
    });
    this.cy.on("dbltap", "node", (event) => open((event.target as cytoscape.NodeSingular).id()));
    this.cy.on("mouseover", "node", () => (box.style.cursor = "pointer"));
    this.cy.on("mouseout", "node", () => (box.style.cursor = ""));
    this.cy.on("mouseover", "edge", (event) => void event.target.addClass("labelled detailed"));
    this.cy.on("mouseout", "edge", (event) => {
      event.target.removeClass("detailed").toggleClass("labelled", this.labelled && !!event.target.data("label"));
    });
  }

  private jobOf(element: cytoscape.SingularElementArgument): string {
    return element.isEdge() ? (element.data("to") as string) : element.id();
  }

  /** Draw a graph. Nodes stay where they are as long as the scope is the same. */
  show(graph: Graph, scope: string): void {
    const first = scope !== this.scope;
    if (first) this.places = new Map();
    this.scope = scope;
    const ids = graph.nodes.map((node) => node.id);
    this.places = arrange(ids, graph.edges, this.places);
    const many = graph.nodes.length + graph.edges.length > MANY;
    if (many !== this.many || first) {
      this.many = many;
      this.movement.use(many);
      this.paint();
    }
    this.cy.batch(() => this.update(graph));
    if (first) this.fit();
  }

  private update({ nodes, edges: all }: Graph): void {
    // Routes inside a group are a number in its text, no line from a box to itself.
    const isInside = (edge: GraphEdge) => edge.from === edge.to && /^(group|namespace):/.test(edge.from);
    const inside = new Map(all.filter(isInside).map((edge) => [edge.from, edge.routes]));
    const edges = all.filter((edge) => !isInside(edge));
    const shown = new Set([...nodes, ...edges].map((one) => one.id));
    this.cy.elements().filter((one) => !shown.has(one.id())).remove();
    for (const node of nodes) {
      const routes = inside.get(node.id);
      const text = routes ? `${nodeText(node)} · ${plural(routes, "route")} inside` : nodeText(node);
      this.put(node.id, { ...node, label: `${title(node)}\n${text}` });
    }
    for (const edge of edges) {
      this.put(edge.id, {
        id: edge.id,
        source: edge.from,
        target: edge.to,
        from: edge.from,
        to: edge.to,
        state: edge.state,
        label: edgeText(edge),
        detail: [edgeText(edge), `${rate(edge.rowsPerSecond)} rows`].filter(Boolean).join("\n"),
        width: width(edge.rowsPerSecond),
        ...(this.many ? {} : this.bend(edge)),
      });
    }
    this.labelled = edges.length <= LABELLED;
    this.cy.edges().toggleClass("labelled", this.labelled);
    this.cy.edges("[label = '']").removeClass("labelled");
  }

  /** Add an element, or change it if it differs: what is set is drawn again. */
  private put(id: string, data: Record<string, unknown>): void {
    const found = this.cy.getElementById(id);
    const place = this.places.get(id);
    if (found.empty()) {
      this.cy.add({ data, position: place && { ...place } } as cytoscape.ElementDefinition);
      return;
    }
    const was = found.data() as Record<string, unknown>;
    if (Object.entries(data).some(([name, value]) => !same(was[name], value))) found.data(data);
    if (!place) return;
    const node = found as unknown as cytoscape.NodeSingular;
    const { x, y } = node.position();
    if (x !== place.x || y !== place.y) node.position({ ...place });
  }

  /** Two control points that let a line leave and arrive horizontally. */
  private bend(edge: GraphEdge): Record<string, unknown> {
    const [from, to] = [this.places.get(edge.from), this.places.get(edge.to)];
    if (!from || !to || edge.from === edge.to) return {};
    const [dx, dy] = [to.x - from.x - WIDTH, to.y - from.y];
    const length = Math.hypot(dx, dy);
    if (Math.abs(dy) < 2 || length < 1) return {};
    const reach = Math.max(dx * 0.3, 40);
    const weight = (x: number, y: number) => (x * dx + y * dy) / (length * length);
    const distance = (x: number, y: number) => (y * dx - x * dy) / length;
    const points: [number, number][] = [
      [reach, 0],
      [dx - reach, dy],
    ];
    return {
      weights: points.map(([x, y]) => weight(x, y)),
      bend: points.map(([x, y]) => distance(x, y)),
    };
  }

  /** Take the colours of the page. */
  paint(): void {
    this.cy.style(style(readColours(), this.many));
  }

  choose(id: string | null): void {
    this.cy.nodes(".chosen").removeClass("chosen");
    if (id) this.cy.getElementById(id).addClass("chosen");
  }

  /** The next node in a direction, for the arrow keys. */
  next(id: string | null, key: string): string | null {
    const from = id ? this.places.get(id) : undefined;
    if (!from) return this.cy.nodes()[0]?.id() ?? null;
    const along = key === "ArrowLeft" || key === "ArrowRight" ? "x" : "y";
    const across = along === "x" ? "y" : "x";
    const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    let best: string | null = null;
    let least = Infinity;
    for (const [other, place] of this.places) {
      const ahead = (place[along] - from[along]) * sign;
      const cost = ahead + 3 * Math.abs(place[across] - from[across]);
      if (ahead > 1 && cost < least) [best, least] = [other, cost];
    }
    return best ?? id;
  }

  center(id: string): void {
    const node = this.cy.getElementById(id);
    if (node.nonempty()) this.cy.animate({ center: { eles: node }, duration: 180 });
  }

  fit(): void {
    this.cy.resize();
    this.cy.fit(undefined, 36);
    if (this.cy.zoom() > 1.25) {
      this.cy.zoom(1.25);
      this.cy.center();
    }
  }

  zoom(factor: number): void {
    const middle = { x: this.cy.width() / 2, y: this.cy.height() / 2 };
    this.cy.zoom({ level: this.cy.zoom() * factor, renderedPosition: middle });
  }

  rearrange(graph: Graph): void {
    const scope = this.scope;
    this.scope = "";
    this.show(graph, scope);
  }

  /** Places of all nodes, for tests and figures. */
  positions(): Record<string, Point> {
    return Object.fromEntries(this.places);
  }

  end(): void {
    this.movement.stop();
    this.cy.destroy();
  }
}
