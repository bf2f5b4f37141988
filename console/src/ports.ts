import type { Kind } from "./types";

/** A port by its parts. Its text is NAMESPACE/JOB/PE/PORT. */
export interface PortKey {
  namespace: string;
  job: string;
  pe: string;
  port: string;
}

export function parsePort(text: string): PortKey | null {
  const [namespace, job, pe, port, ...more] = text.trim().split("/");
  return namespace && job && pe && port && !more.length ? { namespace, job, pe, port } : null;
}

/** The path of a port below the API. */
export function portPath(kind: Kind, key: PortKey, part = ""): string {
  const pieces = ["job", key.job, "pe", key.pe, kind.toLowerCase(), key.port];
  return pieces.map(encodeURIComponent).join("/") + (part && `/${part}`);
}

export const shortPort = (text: string, namespace: string): string =>
  text.startsWith(`${namespace}/`) ? text.slice(namespace.length + 1) : text;
