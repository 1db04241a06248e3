"""A platform plug-in of vLLM that lets Ray give out processors; stock vLLM refuses Ray on them."""


def register() -> str:
    """Return the class of the platform, as vLLM asks the plug-ins of group vllm.platform_plugins."""
    return "gaudi_serve_cpu_ray.platform.RayCpuPlatform"
