"""What the benchmarks share on the command line: how sizes are written, and the line that shows progress."""
import argparse
import sys
import time


class Progress:
    """One line on standard error that says what is being measured."""

    def __init__(self):
        self.tty = sys.stderr.isatty()
        self.start = time.monotonic()

    def say(self, text):
        text = f"bench: {time.monotonic() - self.start:4.0f} s  {text}"
        sys.stderr.write(f"\r\033[K{text}" if self.tty else text + "\n")
        sys.stderr.flush()

    def clear(self):
        if self.tty:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def parse_size(text):
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    size = int(text[:-1] if factor > 1 else text) * factor
    if size <= 0 or size % 64 != 0:
        raise ValueError
    return size


def parse_list(convert, what):
    def parse(text):
        try:
            return [convert(word.strip()) for word in text.split(",")]
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"{text}: {what}") from None
    return parse
