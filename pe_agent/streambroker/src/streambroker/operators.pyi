"""Types of the names that the module imports on first use."""

from pe_agent.aligned.file_ends import PATH_COLUMN as PATH_COLUMN
from pe_agent.aligned.file_ends import EndOfFile as EndOfFile
from pe_agent.aligned.file_ends import FileEnds as FileEnds
from pe_agent.aligned.options import OperatorOptions as OperatorOptions
from pe_agent.log.control_file import ControlFile as ControlFile
from pe_agent.streams.stream import OperatorStream as OperatorStream
from pe_agent.streams.stream import Stream as Stream
from pe_agent.streams.stream import apply as apply
from pe_agent.streams.stream import control_stream as control_stream
from pe_agent.streams.stream import stream as stream
from streambroker_core.control.operators.operator import Blobs as Blobs
from streambroker_core.control.operators.operator import Changes as Changes
from streambroker_core.control.operators.operator import Input as Input
from streambroker_core.control.operators.operator import Operator as Operator
from streambroker_core.control.operators.typed_operator import TypedOperator as TypedOperator
from streambroker_core.control.operators.typed_operator import handles as handles
from streambroker_core.control.tuples import ControlTuple as ControlTuple
from streambroker_core.control.tuples import Delivery as Delivery
from streambroker_core.control.tuples import Limits as Limits
from streambroker_core.control.tuples import Target as Target
from streambroker_core.control.tuples.payloads import Codec as Codec
from streambroker_core.errors import AlignedError as AlignedError
