"""Received attention by group of queries: prompt, committed, still masked, the current block, later blocks.

The groups' atoms part the queries of a pass, so a union is their mean weighted by their sizes, and the union of all
gives back the whole. Masked and unmasked queries may keep separate sinks (2510.15731): every table can be made for a
group.

Where it misleads: the recorder averages over heads unless told otherwise, so a group then has no dim `head`. A step at
which the group has no query is NaN and takes part in nothing. `n` stays the number of existing *keys*, whatever the
number of queries that asked.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import xarray as xr

from sinkscope import attention
from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.scales import anywhere, key_exists, mean_over, own_received

ATOMS = attention.GROUPS
UNIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "masked": ("block-masked", "later"),
        "block": ("block-committed", "block-masked"),
        "all-committed": ("committed", "block-committed"),
        "all": ATOMS,
    }
)
RENOISED: Mapping[str, str] = MappingProxyType(
    {own: atom for own, atom in zip(attention.RENOISED_GROUPS, ATOMS, strict=True) if own != atom}
)
"""What a trace of a renoising model calls an atom."""
GROUPS = (*ATOMS, *UNIONS, *RENOISED)


def atoms_of(group: str) -> tuple[str, ...]:
    """The atoms of a group that is known; those of a renoising model under the names of all others."""
    atom = RENOISED.get(group, group)
    return UNIONS.get(atom, (atom,))


def group_atoms(sample: xr.Dataset, group: str) -> list[str]:
    """The recorded atoms that make up `group`. Raises `UserError` for an unknown or unrecorded group."""
    if group not in GROUPS:
        raise UserError(f"unknown group of queries {group!r}: use one of {', '.join(GROUPS)}")
    if "received_by_group" not in sample or "queries" not in sample:
        raise UserError(
            f"this trace has no received attention by group, {group!r} was asked: record it with by_group, or use 'all'"
        )
    recorded = [str(name) for name in sample["group"].values]
    atoms = [name for name in recorded if {*atoms_of(name)} <= {*atoms_of(group)}]
    if not atoms or (group in RENOISED and group not in recorded):
        raise UserError(f"group {group!r} was not recorded: this trace has {', '.join(recorded)}")
    return atoms


def group_size(sample: xr.Dataset, group: str) -> xr.DataArray:
    """Number of queries of `group` in the pass of every step, `(step,)`."""
    return sample["queries"].sel(group=group_atoms(sample, group)).sum("group").rename("queries")


def received_from(sample: xr.Dataset, group: str = "all") -> xr.DataArray:
    """Attention that each key receives on average from the queries of `group`, an atom or a union.

    `(step, layer, head, position)`, or `(step, layer, position)` where the recorder averaged the groups over heads.
    "all" is the recorded whole, as stored; the others are float64. NaN where the key does not exist or the group is
    empty. Raises `UserError` for a group that is unknown or was not recorded.
    """
    if group == "all":
        return own_received(sample).assign_attrs(group=group)
    return received_by(sample, [group]).isel(group=0, drop=True).assign_attrs(group=group)


def no_key_from(sample: xr.Dataset, group: str = "all") -> xr.DataArray | None:
    """What the queries of `group` pay to no key on average, `(step, layer, head)`.

    Without `head` where the recorder averaged the groups over heads. None where the model has no learned sinks, NaN
    where the group is empty.
    """
    if "no_key" not in sample:
        return None
    if group == "all":
        return sample["no_key"]
    atoms = group_atoms(sample, group)
    size, paid = sample["queries"].sel(group=atoms), sample["no_key_by_group"].sel(group=atoms)
    asked = size.sum("group")
    mean: xr.DataArray = (paid * size).sum("group", skipna=False) / asked.where(asked > 0)
    return mean


def received_by(sample: xr.Dataset, groups: Sequence[str], exists: xr.DataArray | None = None) -> xr.DataArray:
    """As `received_from` for several groups at once, with a dim `group` that is labelled by their names.

    Every group is worked out from its atoms, "all" too. exists: the sample's `key_exists`, where it is known. Costs a
    float64 copy of the recorded groups for each name.
    """
    atoms = {group: group_atoms(sample, group) for group in groups}
    recorded = sample["group"].values
    belongs = [[float(atom in atoms[group]) for atom in recorded] for group in groups]
    membership = xr.DataArray(belongs, dims=("union", "group"), coords={"group": recorded})
    parts = sample[["received_by_group", "queries"]]
    received = by_step_blocks(lambda part: _weighted(part, membership), parts)
    received = received.rename(union="group").assign_coords(group=list(groups))
    exists = key_exists(own_received(sample)) if exists is None else exists
    exists = exists if "head" in received.dims else anywhere(exists)
    received = received if exists.all() else received.where(exists)
    return received.rename("received").transpose(*sample["received_by_group"].dims)


def head_mean(sample: xr.Dataset) -> xr.DataArray:
    """The whole received attention in the dims that the groups have: averaged over heads where they are."""
    received = own_received(sample).assign_attrs(group="all")
    if "head" in sample["received_by_group"].dims or "head" not in received.dims:
        return received
    return by_step_blocks(lambda part: mean_over(part, "head"), received)


def _weighted(parts: xr.Dataset, membership: xr.DataArray) -> xr.DataArray:
    size = membership * parts["queries"]
    asked = size.sum("group")
    paid: xr.DataArray = xr.dot(parts["received_by_group"].where(parts["queries"] > 0, 0.0), size, dim="group")
    mean: xr.DataArray = paid / asked.where(asked > 0)
    return mean
