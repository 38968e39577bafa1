/* lane_paths.h - which of the connections to a node a message takes (wire.paths). See lane_wire.h
 *
 * Where a network has several routes, each connection goes one of them, and by chance one route gets more of them than
 * another. So each message says which connection it takes, and the receiver's next messages say of which connections
 * some have come. The next takes the connection with the fewest that are not known to have come: a route that is slow,
 * or shared by many, gets less. (UCX's own word that a send has ended does not serve: socket buffers hold several.)
 */
#ifndef GWD_LANE_PATHS_H
#define GWD_LANE_PATHS_H

#include <stdint.h>

enum { GWD_PATHS_MAX = 16, GWD_PATHS_ANSWERS = 7 };

/* In the header of every message. */
typedef struct gwd_paths_word {
    uint8_t path;                       /* that this message takes */
    uint8_t answers[GWD_PATHS_ANSWERS]; /* 1 + a path on which a message has come; 0: none */
} gwd_paths_word_t;

/* Of one node; all zeros at first. */
typedef struct gwd_paths {
    uint32_t n_sent[GWD_PATHS_MAX]; /* and not answered */
    uint32_t n_came[GWD_PATHS_MAX]; /* and still to be answered */
    uint32_t turn;                  /* where the search for the emptiest begins, so that equal ones are used by turns */
} gwd_paths_t;

/* The word of the next message, which is going to be sent, over one of `n` paths, at most GWD_PATHS_MAX. */
gwd_paths_word_t gwd_paths_next(gwd_paths_t *paths, uint32_t n);

/* That of a message that has come, which may say anything. */
void gwd_paths_heard(gwd_paths_t *paths, const gwd_paths_word_t *word);

#endif
