import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Info } from "./types";

/** What every view knows: the broker's settings and the chosen namespace. */
export interface Session {
  info: Info;
  namespace: string;
  dark: boolean;
}

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("no session");
  return session;
}
