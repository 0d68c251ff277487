"""Readers of arguments and files: arrays, frames and labels; CoNLL files; data sets."""
