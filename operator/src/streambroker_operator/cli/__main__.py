"""Run the command line as ``python -m streambroker_operator.cli``."""

import sys

from streambroker_operator.cli.app import main

sys.exit(main())
