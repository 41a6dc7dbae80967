/* A barrier of the processes of one host as harness/cluster/meeting.py has it, without Python: look out for `seconds`,
 * giving way, then sleep on a futex. came, asleep: a byte a process; number: of this meeting. What it costs is the least
 * that a barrier costs which sleeps. barrier_cost.py --floor compiles it, and times it beside the others. */
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int missing(volatile uint8_t *came, int size, uint8_t number) {
    for (int i = 0; i < size; i++)
        if (came[i] == (uint8_t)(number - 1)) return 1;
    return 0;
}

void meet(volatile uint32_t *word, volatile uint8_t *came, volatile uint8_t *asleep, int size, int place,
          uint8_t number, double seconds) {
    came[place] = number;
    __sync_synchronize();
    if (!missing(came, size, number)) {
        if (memchr((const void *)asleep, 1, size)) {
            __sync_fetch_and_add(word, 1);
            syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, 0, 0, 0);
        }
        return;
    }
    for (double end = now() + seconds; now() < end; sched_yield())
        if (!missing(came, size, number)) return;
    asleep[place] = 1;
    __sync_synchronize();
    for (;;) {
        uint32_t count = *word;
        if (!missing(came, size, number)) break;
        syscall(SYS_futex, word, FUTEX_WAIT, count, 0, 0, 0);
    }
    asleep[place] = 0;
}
