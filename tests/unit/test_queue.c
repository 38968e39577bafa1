/* test_queue.c - values go through in order, the queue grows, and the receiver is woken */
#include "queue.h"

#include <poll.h>

#include "cunit_main.h"

static void values_come_out_in_order(void) {
    gwd_queue_t queue;
    int value, next = 0;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&queue, sizeof(int)), 0);
    CU_ASSERT_FALSE(gwd_queue_pop(&queue, &value));
    /* More than its first capacity, with its head anywhere in the cycle. */
    for (int i = 0; i < 1000; i++) {
        CU_ASSERT(gwd_queue_push(&queue, &i));
        if (i % 3 == 0) {
            CU_ASSERT(gwd_queue_pop(&queue, &value));
            CU_ASSERT_EQUAL(value, next++);
        }
    }
    while (gwd_queue_pop(&queue, &value))
        CU_ASSERT_EQUAL(value, next++);
    CU_ASSERT_EQUAL(next, 1000);
    CU_ASSERT(gwd_queue_empty(&queue));
    gwd_queue_fini(&queue);
}

static void the_receiver_is_woken_until_it_clears_that(void) {
    gwd_queue_t queue;
    struct pollfd poll_fd = {.events = POLLIN};
    int value = 7;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&queue, sizeof(int)), 0);
    poll_fd.fd = queue.wake_fd;
    CU_ASSERT_EQUAL(poll(&poll_fd, 1, 0), 0);
    CU_ASSERT(gwd_queue_push(&queue, &value));
    CU_ASSERT_EQUAL(poll(&poll_fd, 1, 0), 1);
    gwd_queue_clear_wake(&queue);
    CU_ASSERT_EQUAL(poll(&poll_fd, 1, 0), 0);
    CU_ASSERT_FALSE(gwd_queue_empty(&queue)); /* the wake is gone, the value is not */
    gwd_queue_fini(&queue);
}

enum { SENT = 20000 };

static void *send_all(void *argument) {
    for (int i = 0; i < SENT; i++)
        CU_ASSERT_FATAL(gwd_queue_push(argument, &i));
    return NULL;
}

static void no_value_is_lost_between_threads(void) {
    gwd_queue_t queue;
    pthread_t sender;
    int value, next = 0;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&queue, sizeof(int)), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&sender, NULL, send_all, &queue), 0);
    while (next < SENT) {
        struct pollfd poll_fd = {queue.wake_fd, POLLIN, 0};

        CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, 10000), 1); /* a lost wake would hang here */
        gwd_queue_clear_wake(&queue);
        while (gwd_queue_pop(&queue, &value))
            CU_ASSERT_EQUAL(value, next++);
    }
    pthread_join(sender, NULL);
    gwd_queue_fini(&queue);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"values come out in order", values_come_out_in_order},
        {"the receiver is woken until it clears that", the_receiver_is_woken_until_it_clears_that},
        {"no value is lost between threads", no_value_is_lost_between_threads},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("queue", tests);
}
