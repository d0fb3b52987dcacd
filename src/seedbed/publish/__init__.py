"""Datasets outside of their directory: exports, chat formats for fine-tuning, cards and the Hugging Face hub.

It reads a dataset and writes elsewhere, but for the card, which is written to `.seedbed/card/`. It runs nothing.
"""
