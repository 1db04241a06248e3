"""The communicator between ranks. Ray hands all of them one address to meet at, by which they would share memory."""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class ApartCommunicator(CpuCommunicator):
    """Ranks on several hosts."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
