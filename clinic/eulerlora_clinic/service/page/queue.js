/* A queue of tasks with a limit on how many run concurrently. */

/** Returns a function that enqueues a task; `limit` tasks run concurrently. Tasks never reject. */
export function taskQueue(limit) {
  const waiting = [];
  let running = 0;

  function next() {
    while (running < limit && waiting.length > 0) {
      running += 1;
      waiting.shift()().finally(() => {
        running -= 1;
        next();
      });
    }
  }

  return (task) => {
    waiting.push(task);
    next();
  };
}
