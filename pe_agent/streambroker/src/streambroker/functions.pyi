"""Types of the names that the module imports on first use."""

from pe_agent.functions import DONE as DONE
from pe_agent.functions import INVALID as INVALID
from pe_agent.functions import NO_PORT as NO_PORT
from pe_agent.functions import PROGRAMMED as PROGRAMMED
from pe_agent.functions import UNKNOWN as UNKNOWN
from pe_agent.functions import Known as Known
from pe_agent.functions import Outcome as Outcome
from pe_agent.functions import get_export_properties as get_export_properties
from pe_agent.functions import get_import_filter as get_import_filter
from pe_agent.functions import get_import_streams as get_import_streams
from pe_agent.functions import get_import_subscription as get_import_subscription
from pe_agent.functions import set_export_properties as set_export_properties
from pe_agent.functions import set_import_filter as set_import_filter
from pe_agent.functions import set_import_streams as set_import_streams
from pe_agent.functions import set_import_subscription as set_import_subscription
