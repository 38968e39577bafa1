"""test_torchrun.py - the hook for DistributedDataParallel where torchrun starts the ranks

Needs a Python with torch: this one's, or the system's.
"""

import ranks
from ranks import Daemon, main
from torch_ranks import check_torchrun

WORKER = "ddp_rank.py"


def one_node():
    with Daemon(bystanders=False) as daemon:
        check_torchrun(WORKER, [daemon], 2, "plain")


def two_nodes():
    with ranks.nodes(2) as daemons:
        check_torchrun(WORKER, daemons, 1, "plain")


if __name__ == "__main__":
    main(globals(), 60)
