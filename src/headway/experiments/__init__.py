"""Experiments on sets of trained models: is the same noise the same image, and what do their loss landscapes look like?"""
