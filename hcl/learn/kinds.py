"""Every kind of learner, by its settings: what may stand as ``kind`` of a method.

A class of settings names the module of its learner (``learner``), which is imported when it is
built: who adds a kind changes nothing that the others depend on, and trains none of them again.
"""

from __future__ import annotations

from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.settings import FlowMethod
from hcl.learn.joint.settings import JointMethod
from hcl.learn.plus.settings import PlusMethod

AnyMethod = (
    FlowMethod
    | CurlMethod
    | NearestMeanMethod
    | StreamingLDAMethod
    | RanPACMethod
    | PlusMethod
    | JointMethod
)
