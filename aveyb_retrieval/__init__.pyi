"""The public names of the package, for type checkers.

`__init__.py` imports each when it is first used.
"""

from aveyb_retrieval.documents.readers.originals import Box as Box
from aveyb_retrieval.documents.records import FileOrigin as FileOrigin
from aveyb_retrieval.documents.records import Notice as Notice
from aveyb_retrieval.encoder.config import AveyBConfig as AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder as Embedder
from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument as EncodedDocument
from aveyb_retrieval.encoder.model_folders import model_path as model_path
from aveyb_retrieval.encoder.network.heads import (
    AveyBForSequenceClassification as AveyBForSequenceClassification,
)
from aveyb_retrieval.encoder.network.heads import (
    AveyBForTokenClassification as AveyBForTokenClassification,
)
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM as AveyBForMaskedLM
from aveyb_retrieval.encoder.network.model import AveyBModel as AveyBModel
from aveyb_retrieval.encoder.text.passages import PassageSize as PassageSize
from aveyb_retrieval.engines.publish import PublishReport as PublishReport
from aveyb_retrieval.engines.publish import publish_index as publish_index
from aveyb_retrieval.engines.publish import unpublish_documents as unpublish_documents
from aveyb_retrieval.errors import AveyBError as AveyBError
from aveyb_retrieval.errors import BackendError as BackendError
from aveyb_retrieval.errors import ConfigError as ConfigError
from aveyb_retrieval.errors import DiskError as DiskError
from aveyb_retrieval.errors import EngineError as EngineError
from aveyb_retrieval.errors import IndexFormatError as IndexFormatError
from aveyb_retrieval.errors import IndexLockedError as IndexLockedError
from aveyb_retrieval.errors import InputError as InputError
from aveyb_retrieval.errors import ModelError as ModelError
from aveyb_retrieval.errors import OptionalDependencyError as OptionalDependencyError
from aveyb_retrieval.family.answers import (
    AveyBForQuestionAnswering as AveyBForQuestionAnswering,
)
from aveyb_retrieval.family.avey import AveyForCausalLM as AveyForCausalLM
from aveyb_retrieval.family.config import AveyConfig as AveyConfig
from aveyb_retrieval.family.config import FunnelAveyBConfig as FunnelAveyBConfig
from aveyb_retrieval.family.funnel import FunnelAveyBModel as FunnelAveyBModel
from aveyb_retrieval.family.reference import ReferenceAveyB as ReferenceAveyB
from aveyb_retrieval.indexes.changes.change import Report as Report
from aveyb_retrieval.indexes.changes.copy import CopyReport as CopyReport
from aveyb_retrieval.indexes.changes.copy import copy_index as copy_index
from aveyb_retrieval.indexes.changes.sync import SyncPlan as SyncPlan
from aveyb_retrieval.indexes.changes.sync import plan_sync as plan_sync
from aveyb_retrieval.indexes.changes.sync import sync_index as sync_index
from aveyb_retrieval.indexes.changes.update import Batch as Batch
from aveyb_retrieval.indexes.changes.update import build_index as build_index
from aveyb_retrieval.indexes.changes.verify import Verdict as Verdict
from aveyb_retrieval.indexes.changes.verify import verify_index as verify_index
from aveyb_retrieval.indexes.cluster import build_on_ray as build_on_ray
from aveyb_retrieval.indexes.index import Index as Index
from aveyb_retrieval.indexes.search.exported_vectors import VectorBatch as VectorBatch
from aveyb_retrieval.indexes.search.hit import Hit as Hit
from aveyb_retrieval.indexes.search.hit import Passage as Passage
from aveyb_retrieval.indexes.search.hit import Result as Result
from aveyb_retrieval.indexes.search.prompts import hits_to_prompt as hits_to_prompt
from aveyb_retrieval.indexes.search.prompts import source_to_prompt as source_to_prompt
from aveyb_retrieval.indexes.search.quotes import QuoteCheck as QuoteCheck
from aveyb_retrieval.indexes.search.retriever import Retriever as Retriever
from aveyb_retrieval.indexes.search.step_times import SearchEvent as SearchEvent
from aveyb_retrieval.indexes.search.stored_documents import Contents as Contents
from aveyb_retrieval.indexes.search.stored_documents import Document as Document
from aveyb_retrieval.indexes.search.stored_documents import Excerpt as Excerpt
from aveyb_retrieval.indexes.search.stored_documents import Match as Match
from aveyb_retrieval.indexes.search.stored_documents import Section as Section

__version__: str
