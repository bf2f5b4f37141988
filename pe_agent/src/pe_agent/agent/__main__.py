"""Run one agent: ``python -m pe_agent.agent --home DIR --job NAME``."""

from pe_agent.agent.process import main

if __name__ == "__main__":
    raise SystemExit(main())
