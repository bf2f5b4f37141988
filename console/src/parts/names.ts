import { get } from "../api";
import { useLoaded } from "../live";
import type { Manifest, Names } from "../types";

export function useNames(namespace: string): Names | null {
  return useLoaded(`names ${namespace}`, (signal) => get<Names>("names", { namespace }, signal)).data;
}

export const portOf = (one: Manifest): string =>
  `${one.metadata.namespace}/${one.spec.job}/${one.spec.pe}/${one.spec.port}`;

/** The first ports of a namespace: what pickers offer. */
export function usePorts(kind: "exports" | "imports", namespace: string): string[] {
  const loaded = useLoaded(`${kind} ${namespace}`, (signal) =>
    get<{ items: Manifest[] }>(kind, { namespace, limit: 1000 }, signal),
  );
  return (loaded.data?.items ?? []).map(portOf).sort();
}

