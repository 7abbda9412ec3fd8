"""Pods and folders for Kubernetes: written, checked, fetched from."""
