/* The state of fuzz_api.c, shared by the files that make the calls. */
#ifndef FUZZ_API_H
#define FUZZ_API_H

#include "fuzz.h"

enum { MAX_SEQS = 4, MAX_TOKENS = 24, VOCAB = 40, MAX_K = 3, API_HANDLES = 8 };

typedef struct api {
    di_core *core;
    di_config config;
    uint64_t uid;             /* newest */
    uint64_t launched, committed;
    int32_t n[3], t[3], kind[3];  /* shape of open steps, by step id modulo 3 */
    di_scheduler_outputs outputs[3];
    int32_t ids[MAX_SEQS], verified[MAX_TOKENS], accepted[MAX_SEQS], drafts[MAX_SEQS * MAX_K];
    float logprob[MAX_TOKENS];
    int8_t status[MAX_SEQS];
    uint64_t handle[API_HANDLES];       /* the newest pins and reservations, by turns */
    uint32_t n_handles;
    int pinned;
} api;

/* A number from the edges of the integer types, or a small one. */
int64_t api_wild(script *s);
/* The state before a call, with the commands of clients carried out, since a refused call may do that. */
di_stats_out api_look(api *a);
/* After a call that gave code: statuses only, the core is whole, and a refusal changed nothing. Returns code. */
int api_call(api *a, const di_stats_out *before, int code);

/* schedule, pack, commit with one thing wrong. */
void api_hostile_step(api *a, script *s);
/* The same in the right order with right arguments, so that there is something to disturb. */
void api_good_step(api *a, script *s);
/* Cost models and observations with one thing wrong. */
void api_hostile_cost(api *a, script *s);
/* Forks, pins, transfers, verification lengths and resets with one thing wrong. */
void api_hostile_sharing(api *a, script *s);
/* Checks of the records of a step with one thing wrong; o is the step's. */
void api_check_step(api *a, script *s, const di_scheduler_outputs *o);
void api_check_inputs(api *a, script *s, const di_scheduler_outputs *o, const di_input_metadata_v41 *m);
void api_check_wishes(api *a, script *s, const di_scheduler_outputs *o, const di_sampler_inputs *in);
void api_check_output(api *a, script *s, const di_scheduler_outputs *o, const di_sampler_output *out);
void api_check_events(api *a, script *s, const di_event_batch *e);
/* Give back what is held from outside. */
void api_end_sharing(api *a);
/* Commit and complete what is open. */
void api_finish(api *a);

#endif
