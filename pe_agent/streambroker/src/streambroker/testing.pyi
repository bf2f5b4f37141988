"""Types of the names that the module imports on first use."""

from pe_agent.spark.local_session import CONF as CONF
from pe_agent.spark.local_session import SMALL as SMALL
from pe_agent.spark.local_session import JavaMissingError as JavaMissingError
from pe_agent.spark.local_session import session as session
