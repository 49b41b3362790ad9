//! Tasks for a thread's own state, from other threads. For cold threads: the caller waits.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

type Task<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A queue of tasks for the thread that owns a `T`. That thread runs them between its turns. Clones share the queue.
pub struct TaskQueue<T>(Arc<Mutex<Vec<Task<T>>>>);

impl<T> TaskQueue<T> {
    /// Runs `task` on the owner's thread and returns its result. `wake` makes the owner look at the queue. `None` if the
    /// owner has not run the task within `limit`: it has ended, or it hangs. It may still run the task then.
    pub fn run<R: Send + 'static>(
        &self,
        limit: Duration,
        wake: impl FnOnce(),
        task: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Option<R> {
        let (sender, result) = mpsc::sync_channel(1);
        let task: Task<T> = Box::new(move |owner| {
            // A caller that has given up does not receive.
            let _given_up = sender.send(task(owner));
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        wake();
        result.recv_timeout(limit).ok()
    }

    /// Called by the owner: runs the tasks in the queue, in their order.
    pub fn run_pending(&self, owner: &mut T) {
        let tasks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task(owner);
        }
    }
}

impl<T> Default for TaskQueue<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for TaskQueue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for TaskQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQueue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_owner_runs_each_task_once_in_order_and_an_absent_owner_is_noticed() {
        let queue = TaskQueue::<Vec<u32>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (owners, is_stopped) = (queue.clone(), Arc::clone(&stop));
        let owner = std::thread::spawn(move || {
            let mut numbers = Vec::new();
            while !is_stopped.load(Ordering::Acquire) {
                owners.run_pending(&mut numbers);
                std::thread::park();
            }
            numbers
        });
        for number in 0..10 {
            let wake = || owner.thread().unpark();
            let length = queue.run(Duration::from_secs(60), wake, move |numbers| {
                numbers.push(number);
                numbers.len()
            });
            assert_eq!(length, Some(usize::try_from(number).unwrap() + 1));
        }
        stop.store(true, Ordering::Release);
        owner.thread().unpark();
        assert_eq!(owner.join().unwrap(), (0..10).collect::<Vec<_>>());
        assert_eq!(queue.run(Duration::from_millis(1), || {}, |numbers| numbers.len()), None);
    }
}
