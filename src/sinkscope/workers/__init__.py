"""Workers: processes on this machine or on many, each of which opens a model once and takes jobs of it.

    with open_workers(Asked(on="ray", workers=2)) as workers:
        for end in workers.run([Job("sinkscope.lab.studies:open_lab", key={}, settings=..., cost=1.0, name="a cell")]):
            ...  # Done or Failed, in the order in which jobs end

A job is JSON, so that any machine with the package can do it, and so is what comes of it. Results come back to the one
process that asked, which alone writes. Ray starts the processes, here or on a cluster; nothing here schedules machines.
"""

from sinkscope.workers.asking import Asked, Workers, open_workers
from sinkscope.workers.jobs import Crew, Done, Failed, Job, run_jobs

__all__ = ["Asked", "Crew", "Done", "Failed", "Job", "Workers", "open_workers", "run_jobs"]
