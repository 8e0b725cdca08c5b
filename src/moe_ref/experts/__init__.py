"""Parameters and activations of the expert feed-forward network."""

from moe_ref.experts._activation import activation as activation
from moe_ref.experts._experts import Experts as Experts
from moe_ref.experts._feed_forward import feed_forward as feed_forward
