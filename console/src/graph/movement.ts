/**
 * Moves a large drawing as a picture: the browser moves what is drawn already, and the drawing
 * follows once the movement pauses. Drawing thousands of elements for each frame would be slow.
 */
import type cytoscape from "cytoscape";

const PAUSE_MS = 140;
const WHEEL = 1.0015;

export class Movement {
  private x = 0;
  private y = 0;
  private scale = 1;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private on = false;
  private readonly end = new AbortController();

  constructor(
    private readonly cy: cytoscape.Core,
    private readonly box: HTMLElement,
  ) {
    const { signal } = this.end;
    box.addEventListener("wheel", (event) => this.wheel(event), { signal, capture: true, passive: false });
    box.addEventListener("pointermove", (event) => this.drag(event), { signal, capture: true });
    box.addEventListener("pointerup", () => this.settle(), { signal, capture: true });
  }

  /** Whether the drawing moves as a picture; else Cytoscape moves its elements. */
  use(on: boolean): void {
    this.on = on;
    this.box.parentElement?.classList.toggle("many", on);
    this.cy.userPanningEnabled(!on);
    this.cy.userZoomingEnabled(!on);
  }

  private wheel(event: WheelEvent): void {
    if (!this.on) return;
    event.preventDefault();
    event.stopPropagation();
    const edge = this.box.getBoundingClientRect();
    const [x, y] = [event.clientX - edge.left, event.clientY - edge.top];
    const now = this.cy.zoom() * this.scale;
    const wanted = now * WHEEL ** -event.deltaY;
    const factor = Math.min(this.cy.maxZoom(), Math.max(this.cy.minZoom(), wanted)) / now;
    this.move(x - (x - this.x) * factor, y - (y - this.y) * factor, this.scale * factor);
  }

  private drag(event: PointerEvent): void {
    if (!this.on || event.buttons !== 1) return;
    this.move(this.x + event.movementX, this.y + event.movementY, this.scale);
  }

  private move(x: number, y: number, scale: number): void {
    [this.x, this.y, this.scale] = [x, y, scale];
    this.box.classList.add("moving");
    this.picture((style) => {
      style.willChange = "transform";
      style.transformOrigin = "0 0";
      style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(), PAUSE_MS);
  }

  private picture(change: (style: CSSStyleDeclaration) => void): void {
    const picture = this.box.firstElementChild;
    if (picture instanceof HTMLElement) change(picture.style);
  }

  /** Draw the elements where the picture is. */
  private settle(): void {
    clearTimeout(this.timer);
    if (this.x === 0 && this.y === 0 && this.scale === 1) return;
    const pan = this.cy.pan();
    const { x, y, scale } = this;
    [this.x, this.y, this.scale] = [0, 0, 1];
    this.cy.viewport({ zoom: this.cy.zoom() * scale, pan: { x: pan.x * scale + x, y: pan.y * scale + y } });
    this.cy.one("render", () => {
      this.box.classList.remove("moving");
      this.picture((style) => (style.transform = ""));
    });
  }

  stop(): void {
    clearTimeout(this.timer);
    this.end.abort();
  }
}
