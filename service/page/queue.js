/* Several questions at a time, but not all at once. */

/** A function that runs tasks, `atOnce` of them at a time; a task's promise never rejects. */
export function queue(atOnce) {
  const waiting = [];
  let running = 0;

  function next() {
    while (running < atOnce && waiting.length > 0) {
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
