"""BIOS settings through the Redfish service of a BMC: desired, pending and current values."""
