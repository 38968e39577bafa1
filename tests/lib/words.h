/* words.h - what test programs are told on a line: numbers, and the names of collectives, types and operations */
#ifndef WORDS_H
#define WORDS_H

#include <stdint.h>

#include "gradwire.h"

/* Ends the program. */
_Noreturn void die(const char *what, const char *which);

/* These end it, too, if the word is none of theirs. A number is taken for any of them: tests of what is refused. */
uint64_t number(const char *word);
gw_collective_t collective_of(const char *word);
gw_type_t type_of(const char *word);
gw_redop_t redop_of(const char *word);
gw_codec_t codec_of(const char *word);
gw_rounding_t rounding_of(const char *word);

/* The text in one line, whatever it has in it. Valid until the next call. */
const char *one_line(const char *text);

#endif
