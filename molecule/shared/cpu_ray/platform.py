"""The platform: processors under a name of an accelerator that Ray knows."""

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    """Processors that Ray gives out."""

    ray_device_key = "HPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the communicator between the ranks of a model."""
        return "gaudi_serve_cpu_ray.communicator.ApartCommunicator"
