#!/usr/bin/env bash
# Prints the variables by which a launcher tells a process who it is, sorted: the files beside this
# script are its output under real launchers, below a line with the command.
#
#   mpirun.openmpi -n 4 record.sh 2     the process that has rank 2 prints; without a number, each
set -euo pipefail

of_rank=${1:-}
own=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-}}}}
[[ -z $of_rank || $own == "$of_rank" ]] || exit 0
names='RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_[A-Z_]*|ROLE_[A-Z_]*|MASTER_[A-Z]*'
names+='|TORCHELASTIC_(RESTART_COUNT|MAX_RESTARTS|RUN_ID|USE_AGENT_STORE)|PET_[A-Z_]*'
names+='|SLURM_(PROCID|LOCALID|NODEID|GTIDS|NTASKS[A-Z_]*|NPROCS|NNODES|TASKS_PER_NODE|NODELIST'
names+='|JOBID|JOB_(ID|NUM_NODES|NODELIST)|STEPID|STEP_[A-Z_]*|CLUSTER_NAME|LAUNCH_NODE_IPADDR)'
names+='|OMPI_COMM_WORLD_[A-Z_]*|OMPI_(UNIVERSE_SIZE|APP_CTX_NUM_PROCS)|PMIX_(RANK|NAMESPACE|ID)'
names+='|PMI_[A-Z]*|MPI_LOCAL[A-Z]*|HYDI_[A-Z_]*|MV2_[A-Z_]*'
env | LC_ALL=C sort | grep -E "^($names)="
